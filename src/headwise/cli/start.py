"""What every command that runs a model does first."""

from __future__ import annotations

__all__ = ["prepare"]


def prepare(threads: int | None) -> None:
    """Threads, and libraries that talk on their own: they would tear the progress bar."""
    import os
    import warnings

    # The conversion of a GGUF file shows a bar of its own, which only listens to this, when it is first imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    import torch
    from transformers.utils import logging

    if threads is not None:
        torch.set_num_threads(threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module="huggingface_hub")
