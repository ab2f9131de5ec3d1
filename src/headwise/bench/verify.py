"""Two models side by side: what B lost against A, and what it saves.

The order is from what decides to what is costly: quality on held-out documents, copying, decoding with a cache, bytes
of the cache, latency, peak memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from headwise.bench.environment import environment_record
from headwise.bench.verification.caches import CacheBytes, cache_bytes
from headwise.bench.verification.decoding import Decoding, check_decoding
from headwise.bench.verification.memory import measure_memory
from headwise.bench.verification.pair import check_pair, max_positions
from headwise.bench.verification.quality import Quality, compare_copying, compare_text, copying_questions
from headwise.bench.verification.result import Memory, Verification, record_model
from headwise.bench.verification.settings import Settings
from headwise.bench.verification.speed import Timing, contexts_within, time_decode, time_prefill
from headwise.bench.verification.texts import NamedCorpus, held_out_rows, read_corpora
from headwise.errors import UserError
from headwise.models import Checkpoint
from headwise.models.corpus import Rows
from headwise.progress import Progress, Silent

__all__ = ["verify"]

_SIDE = 2  # rows side by side that are decoded with a cache and without


def verify(
    first: Checkpoint,
    second: Checkpoint,
    corpora: Sequence[NamedCorpus] | None = None,
    *,
    settings: Settings | None = None,
    sources: tuple[str, str] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Compare two models with one vocabulary.

    Args:
        first: A, the model as it was.
        second: B, what was made of it.
        corpora: texts from :func:`headwise.bench.verification.texts.read_corpora`; without any, the two that come
            with Python. Only held-out documents are read, and none that the history of a model names.
        settings: how much is measured.
        sources: what a fresh process opens to take the peak memory of each; without them that is left out.
        progress: is told what goes on.

    Returns:
        Verification.

    Raises:
        UserError: two vocabularies, a model without a language head, rows longer than a model has positions, or too
            little held-out text.
    """
    started = time.monotonic()
    settings, progress = settings or Settings(), progress or Silent()
    check_pair(first, second)
    run = _Run(first, second, settings, progress)
    texts = run.rows(read_corpora() if corpora is None else corpora)
    qualities = run.text(texts)
    copying = run.copying()
    decoding, cache = run.cached(texts[0][1])
    timings = run.latency(cache) if settings.speed else []
    memory = run.memory(timings, sources)
    return Verification(
        a=record_model(first),
        b=record_model(second),
        vocabulary=first.model.config.get_text_config().vocab_size,
        corpora=tuple(qualities),
        copying=copying,
        decoding=decoding,
        cache=cache,
        timings=tuple(timings),
        memory=memory,
        notes=tuple(run.notes),
        settings=settings.as_dict(),
        environment=environment_record(),
        seconds=round(time.monotonic() - started, 1),
    )


class _Run:
    """The steps of one verification, and the notes that they leave."""

    def __init__(self, first: Checkpoint, second: Checkpoint, settings: Settings, progress: Progress) -> None:
        self.pair = first, second
        self.settings = settings
        self.progress = progress
        self.most = max_positions(first, second)
        self.notes: list[str] = []

    def rows(self, corpora: Sequence[NamedCorpus]) -> list[tuple[str, Rows]]:
        """Held-out rows of every corpus, all cut before anything is run."""
        if self.most is not None and self.settings.length > self.most:
            raise UserError(
                f"verify: expected rows of at most {self.most:,} tokens, for which the models have positions, got "
                f"{self.settings.length:,}; ask for shorter ones with --length"
            )
        texts = []
        for named in corpora:
            rows, notes = held_out_rows(named, *self.pair, self.settings)
            self.notes += notes
            texts.append((named.name, rows))
        self.progress.plan(2.0 * sum(rows.tokens.numel() for _, rows in texts))
        return texts

    def text(self, texts: Sequence[tuple[str, Rows]]) -> list[Quality]:
        """Loss, logits, KL and agreement on every corpus."""
        qualities = []
        for name, rows in texts:
            self.progress.stage(f"reading {name}")
            qualities.append(compare_text(name, rows, *self.pair, self.settings, self.progress))
        return qualities

    def copying(self) -> Quality | None:
        """Loss on the second copy of random tokens."""
        try:
            questions = copying_questions(self.pair[0], self.settings)
        except UserError as error:  # a vocabulary of a few letters
            self.notes.append(f"copying was not measured: {error}")
            return None
        length = questions[0].inputs.shape[1]
        if self.most is not None and length > self.most:
            self.notes.append(
                f"copying was not measured: it takes {length} tokens, and the models have {self.most} positions"
            )
            return None
        self.progress.stage("copying random tokens")
        self.progress.plan(2.0 * sum(question.inputs.numel() for question in questions))
        return compare_copying(questions, *self.pair, self.settings, self.progress)

    def cached(self, rows: Rows) -> tuple[tuple[Decoding, Decoding] | None, tuple[CacheBytes, CacheBytes] | None]:
        """Decoding with a cache against without one, and the bytes of the cache."""
        if not all(checkpoint.causal for checkpoint in self.pair):
            self.notes.append("encoders keep no cache: decoding and cache bytes were not measured")
            return None, None
        self.progress.stage("decoding with a cache")
        first, second = (check_decoding(each, rows.tokens[:_SIDE]) for each in self.pair)
        # One token less: it is read again to see what one more token adds.
        sizes = [cache_bytes(each, rows.tokens[:1, :-1]) for each in self.pair]
        if full := " and ".join(label for label, each in zip("AB", sizes, strict=True) if not each.each_further_token):
            self.notes.append(
                f"{full}: a further token adds nothing to the cache, since after {sizes[0].tokens:,} tokens the window "
                "of every layer is full"
            )
        return (first, second), (sizes[0], sizes[1])

    def latency(self, sizes: tuple[CacheBytes, CacheBytes] | None) -> list[Timing]:
        """Prefill and decoding by turns."""
        contexts, notes = contexts_within(self.settings, self.most)
        self.notes += notes
        self.progress.stage("timing prefill")
        timings, notes = time_prefill(*self.pair, contexts, self.settings, self.progress)
        self.notes += notes
        if sizes is not None:
            self.progress.stage("timing decoding")
            decoded, notes = time_decode(*self.pair, contexts, self.settings, sizes, self.progress)
            timings, self.notes = timings + decoded, self.notes + notes
        return timings

    def memory(self, timings: Sequence[Timing], sources: tuple[str, str] | None) -> Memory | None:
        """Peak memory at the largest batch and context that was timed."""
        if not self.settings.speed:
            self.notes.append("latency and peak memory were not measured, as was asked for")
            return None
        if sources is None or not timings:
            self.notes.append("peak memory was not measured: there is nothing that a fresh process could open or run")
            return None
        if kinds := {checkpoint.device.type for checkpoint in self.pair} - {"cpu"}:
            self.notes.append(f"peak memory was not measured: processes are watched on a CPU only, not {kinds.pop()}")
            return None
        largest = max(timings, key=lambda timing: (timing.batch * timing.context, timing.batch))
        self.progress.stage("taking peak memory")
        uses = []
        for label, checkpoint, source in zip("AB", self.pair, sources, strict=True):
            use = measure_memory(
                source,
                dtype=str(checkpoint.model.dtype).removeprefix("torch."),
                batch=largest.batch,
                context=largest.context,
                threads=torch.get_num_threads(),
            )
            if isinstance(use, str):
                self.notes.append(f"peak memory was not measured: {label}: {use}")
                return None
            uses.append(use)
        return Memory(largest.batch, largest.context, *uses)
