"""Peak memory of one implementation of one layout, in a process of its own.

The process holds one layer, its cache and the activations, and Python with torch, which is taken off: what counts is
how far the peak rises above what there was before. It fills the cache piece by piece, decodes a token, and then reads
the whole context at once.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

from headwise.bench.layouts.costs import Load
from headwise.bench.layouts.specs import LayoutSpec
from headwise.bench.processes import forget_peak, peak_bytes, run_fresh

__all__ = ["Peak", "measure_peak"]

_MODULE = "headwise.bench.layouts.memory"
_PIECE = 64  # tokens that fill the cache at once, so that this takes less memory than decoding


@dataclass(frozen=True)
class Peak:
    """Peaks of a process in bytes.

    Attributes:
        before: with Python and torch, before the layer; what was held at that moment where Linux tells it.
        decode: after a token that was decoded behind a full cache.
        prefill: after all of the context was read at once, too.
    """

    before: int
    decode: int
    prefill: int

    @property
    def decode_rise(self) -> int:
        """What layer, cache and a decoded token took."""
        return self.decode - self.before

    @property
    def prefill_rise(self) -> int:
        """What they took with a prefill."""
        return self.prefill - self.before

    def record(self) -> dict[str, int]:
        """As JSON holds it."""
        return {**asdict(self), "decode_rise": self.decode_rise, "prefill_rise": self.prefill_rise}


def measure_peak(
    spec: LayoutSpec, load: Load, *, repeats: bool, backend: str | None, threads: int, seed: int
) -> Peak | str:
    """The peaks of a fresh process, or in words why there are none."""
    order = {"spec": asdict(spec), "load": asdict(load), "repeats": repeats}
    done = run_fresh(_MODULE, order | {"backend": backend, "threads": threads, "seed": seed})
    return done if isinstance(done, str) else Peak(**done)


def _run(spec: LayoutSpec, load: Load, repeats: bool, backend: str | None, threads: int, seed: int) -> Peak:
    import torch

    from headwise.bench.layouts.costs import cost_of
    from headwise.bench.layouts.runners import build_runner, repeating

    torch.set_num_threads(threads)
    with torch.inference_mode():
        # What libraries take when they are first used belongs to none of the layouts.
        small = Load(1, 3, load.dtype)
        build_runner(spec, cost_of(spec, small), small, seed=seed).run(
            torch.ones(1, 3, spec.width, dtype=getattr(torch, load.dtype))
        )
        forget_peak()  # importing took more for a moment, which would hide what small layers take
        before = peak_bytes()
        runner = build_runner(spec, cost_of(spec, load), load, seed=seed, backend=backend)
        runner = repeating(runner) if repeats else runner
        cache = runner.cache(load)
        piece = {"dtype": getattr(torch, load.dtype)}
        for start in range(0, load.context - 1, _PIECE):
            tokens = min(_PIECE, load.context - 1 - start)
            heads = (load.batch, cache.num_kv_heads, tokens)
            widths = (spec.latent, spec.rope) if spec.latent else (spec.head_dim, spec.head_dim)
            cache.append(*(torch.randn(*heads, width, **piece) for width in widths))
        runner.run(torch.randn(load.batch, 1, spec.width, **piece), cache)
        decode = peak_bytes()
        cache.reset()
        runner.run(torch.randn(load.batch, load.context, spec.width, **piece), cache)
    return Peak(before, decode, peak_bytes())


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    given |= {"spec": LayoutSpec(**given["spec"]), "load": Load(**given["load"])}
    print(json.dumps(asdict(_run(**given))))
