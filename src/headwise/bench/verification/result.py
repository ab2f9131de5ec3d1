"""What a verification found: all numbers, as plain JSON, and the sentences that they allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headwise.bench.verification.caches import CacheBytes
from headwise.bench.verification.decoding import Decoding
from headwise.bench.verification.memory import MemoryUse
from headwise.bench.verification.quality import Quality
from headwise.bench.verification.speed import Timing, rounds_to_win
from headwise.models import Checkpoint

__all__ = ["Memory", "ModelRecord", "Verification", "record_model", "speed_sentences"]


@dataclass(frozen=True)
class ModelRecord:
    """One of the two models.

    Attributes:
        name: what it is called.
        source: what was opened.
        model_type: the architecture, as transformers calls it.
        dtype: of its weights.
        parameters: number of weights, tied ones counted once.
        weight_bytes: what they take.
        heads: (query heads, KV heads) of every layer.
        history: what was done to it, oldest step first.
    """

    name: str
    source: str
    model_type: str
    dtype: str
    parameters: int
    weight_bytes: int
    heads: tuple[tuple[int, int], ...]
    history: tuple[dict[str, Any], ...]


def record_model(checkpoint: Checkpoint) -> ModelRecord:
    """What is told of a model beside its numbers."""
    return ModelRecord(
        name=checkpoint.name,
        source=checkpoint.source,
        model_type=checkpoint.model.config.model_type,
        dtype=str(checkpoint.model.dtype).removeprefix("torch."),
        parameters=checkpoint.parameters,
        weight_bytes=sum(parameter.nbytes for parameter in checkpoint.model.parameters()),
        heads=tuple((layout.num_heads, layout.num_kv_heads) for layout in checkpoint.layouts),
        history=checkpoint.history,
    )


@dataclass(frozen=True)
class Memory:
    """Peak memory of both models, each in a process of its own, decoding at this batch and context."""

    batch: int
    context: int
    a: MemoryUse
    b: MemoryUse


@dataclass(frozen=True)
class Verification:
    """B beside A.

    Attributes:
        a: the first model.
        b: the second.
        vocabulary: number of tokens; guessing costs its logarithm in nats.
        corpora: loss, logits, KL and agreement on held-out documents, by corpus.
        copying: the same on the second copy of repeated random tokens; None where that was left out.
        decoding: for A and B, whether a cache changes what they say; None for encoders.
        cache: for A and B, the bytes of transformers' cache; None for encoders.
        timings: latency at every batch and context that was measured.
        memory: peak memory; None where that was left out.
        notes: what was left out, and what a reader must know.
        settings: how much was measured.
        environment: the machine, see :func:`headwise.bench.environment_record`.
        seconds: how long it took.
    """

    a: ModelRecord
    b: ModelRecord
    vocabulary: int
    corpora: tuple[Quality, ...]
    copying: Quality | None
    decoding: tuple[Decoding, Decoding] | None
    cache: tuple[CacheBytes, CacheBytes] | None
    timings: tuple[Timing, ...]
    memory: Memory | None
    notes: tuple[str, ...]
    settings: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def sentences(self) -> tuple[str, ...]:
        """What must be said plainly: where B is not faster, and where decoding isn't what the model says."""
        said = list(speed_sentences(self.timings, self.a.weight_bytes))
        for label, each in zip("AB", self.decoding or (), strict=False):
            if not each.agrees:
                said.append(
                    f"{label}: decoding with a cache is not what the model says without one: logits differ by "
                    f"{each.largest:.3g}, {each.allowed:.2g} would be rounding; don't use its cache"
                )
        return tuple(said)

    def summary(self) -> dict[str, Any]:
        """All of it as plain values that JSON can hold, without NaN."""
        return {
            "a": asdict(self.a),
            "b": asdict(self.b),
            "vocabulary": self.vocabulary,
            "corpora": [corpus.record() for corpus in self.corpora],
            "copying": None if self.copying is None else self.copying.record(),
            "decoding": _both(self.decoding),
            "cache": _both(self.cache),
            "speed": [timing.record() for timing in self.timings],
            "memory": None if self.memory is None else asdict(self.memory),
            "sentences": list(self.sentences),
            "notes": list(self.notes),
            "settings": self.settings,
            "environment": self.environment,
            "seconds": self.seconds,
        }


def _both(pair: tuple[Any, Any] | None) -> dict[str, Any] | None:
    return None if pair is None else dict(zip("ab", (each.record() for each in pair), strict=True))


def speed_sentences(timings: Sequence[Timing], weight_bytes: int) -> list[str]:
    """One sentence for each measurement in which B is not shown to be faster, one where it is faster in all of a kind,
    and the rule.

    Beside the median of the paired ratios stand their quartiles and the rounds that B won, by which the rule goes.

    Args:
        timings: what was measured.
        weight_bytes: of A, to say how little the cache is beside the weights where that is the reason.
    """
    said = []
    for phase in ("prefill", "decode"):
        rows = [timing for timing in timings if timing.phase == phase]
        others = [timing for timing in rows if not timing.faster]
        said += [_not_faster(timing, weight_bytes) for timing in others]
        if rows and not others:
            ends = sorted({f"{timing.ratio:.2f}" for timing in rows}, key=float)
            told = f"paired ratios {ends[0]} to {ends[-1]}" if len(ends) > 1 else f"paired ratio {ends[0]}"
            said.append(f"{phase}: B is faster wherever it was timed, {told}")
    if any(timing.phase == "decode" for timing in timings):
        said.append("decode: with transformers' DynamicCache, which copies all keys and values at every token")
    if timings:
        needed = " and ".join(f"{rounds_to_win(rounds)} of {rounds}" for rounds in sorted({t.rounds for t in timings}))
        said.append(f"faster, or slower: by a sign test over the rounds at 5 %, which takes {needed} rounds won")
    return said


def _not_faster(timing: Timing, weight_bytes: int) -> str:
    low, high = timing.quartiles
    how = "slower" if timing.slower else "not shown to be faster"
    told = (
        f"{timing.phase}: B is {how} at batch {timing.batch}, context {timing.context:,}: paired ratio "
        f"{timing.ratio:.2f} ({low:.2f} to {high:.2f}), {timing.won} of {timing.rounds} rounds won"
    )
    if timing.cache is None:
        return told
    share = timing.cache[0] / (timing.cache[0] + weight_bytes)
    return f"{told}; the cache is {share:.0%} of what a step of A reads"
