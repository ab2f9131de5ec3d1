"""What the page calls things. One place, so that the sentences, the charts and the static figure agree.

A name that stands in the results but not here is shown as it is: a new relation needs no change to the page.
"""

from __future__ import annotations

__all__ = [
    "METHOD",
    "MODES",
    "PROBES",
    "SCORES",
    "TASKS",
    "UNITS",
    "count_word",
    "heads_of",
    "label",
    "page_words",
    "task_phrase",
]

# name -> (label, what such heads are called, definition)
SCORES: dict[str, tuple[str, str, str]] = {
    "induction": (
        "Induction",
        "induction heads",
        "Share of a query's attention on the tokens that followed earlier copies of its token: what came next before.",
    ),
    "previous": (
        "Previous token",
        "previous-token heads",
        "Share of a query's attention on the token just before it.",
    ),
    "duplicate": (
        "Duplicate token",
        "duplicate-token heads",
        "Share of a query's attention on other copies of the query's own token.",
    ),
    "first": (
        "First token",
        "first-token heads",
        "Share of a query's attention on the first position, where many heads rest when they have nothing to do.",
    ),
    "delimiter": (
        "Delimiter",
        "delimiter heads",
        "Share of a query's attention on delimiters, such as punctuation and line breaks.",
    ),
    "entropy": (
        "Entropy",
        "broad heads",
        "Entropy of a query's weights in nats. Low: a few keys; high: spread over many. Described, not tested.",
    ),
    "distance": (
        "Distance",
        "far-looking heads",
        "Mean distance in tokens between a query and the keys that it attends to. Described, not tested.",
    ),
    "largest": (
        "Largest weight",
        "sharp heads",
        "The largest single weight of a query, averaged. Described, not tested.",
    ),
}

# name -> (label, as it stands in a sentence)
TASKS: dict[str, tuple[str, str]] = {
    "repeated": ("Repeated tokens", "the second copy of repeated random tokens"),
    "text": ("Text", "text"),
}
PROBES = {"repeated": "repeated tokens", "text": "text"}
MODES = {"zero": "Zeroed", "mean": "Replaced by its mean"}
UNITS = {"entropy": "nats", "distance": "tokens"}

# title -> paragraph; the page lists them under "How it was measured".
METHOD: dict[str, str] = {
    "Scores": (
        "Each score is the share of attention that a head's softmax puts on one relation between a query and its keys, "
        "averaged over the queries of a document for which the relation can be met, then over documents. It is added "
        "up while the weights stream through; whole attention maps are never stored."
    ),
    "Chance": (
        "Every tested score stands beside what it would be without learning. Uniform: attention spread evenly over the "
        "visible keys. Random weights: heads of the same architecture, each weight drawn anew from the model's own "
        "weights of that tensor; their mean and 95th percentile. Shuffled, for scores that depend on content: on text "
        "the head's own attention, but which token is said to stand where is drawn at random; on repeated tokens a "
        "second half that repeats nothing, read at the same places. “Chance” in the figures and tables is the largest "
        "of these means."
    ),
    "Intervals": (
        "95\u00a0% bootstrap intervals over documents. They say how far a value would move with other documents of the "
        "same kind, not with another model or another kind of text."
    ),
    "Findings": (
        "A head is compared with every null: document by document with uniform and shuffled attention, and by rank "
        "among the heads with random weights. The largest of these p-values counts. Over all heads and all scores "
        "they are corrected for the false discovery rate by the method of Benjamini and Hochberg, which gives q. "
        "A finding has a q at or below the level of this run, an interval above every null, and a value at least the "
        "margin of this run above chance: with many tokens even a hundredth is significant, and means nothing. Level "
        "and margin stand under “Settings”. p-values are counted, so q cannot fall below what the number of random "
        "heads allows. Each score is decided on one kind of sample; its value on the other is there for comparison."
    ),
    "Importance": (
        "First-order estimate of how much the loss depends on a head: the mean over documents of |dL/dξ|, where ξ = 1 "
        "is a gate on the head's output (Michel et al., 2019). It costs one backward pass, and it is an estimate; "
        "ablation is the test."
    ),
    "Ablation": (
        "A head's output is set to zero, or to its mean over all positions read, and the loss is compared with the "
        "intact model's document by document. Zeroing also removes a constant that later layers may rely on, so it "
        "tends to overstate what a head does; the mean keeps that constant. Both are always shown. Controls are as "
        "many random heads of the same layers, and what counts is the rise of the loss beyond theirs."
    ),
}

_COUNT_WORDS = "no one two three four five six seven eight nine ten eleven twelve".split()


def label(score: str) -> str:
    """The name of a score as a heading."""
    return SCORES[score][0] if score in SCORES else score


def heads_of(score: str) -> str:
    """What heads with a high value of this score are called, in the plural."""
    return SCORES[score][1] if score in SCORES else f"“{score}” heads"


def task_phrase(task: str) -> str:
    """A task as it stands in a sentence."""
    return TASKS[task][1] if task in TASKS else task


def count_word(count: int) -> str:
    """Small counts in words, larger ones in digits."""
    return _COUNT_WORDS[count] if 0 <= count < len(_COUNT_WORDS) else str(count)


def page_words() -> dict[str, object]:
    """The words that the page's scripts need, as plain data."""
    return {
        "scores": {
            name: {"label": words[0], "heads": words[1], "definition": words[2], "unit": UNITS.get(name, "share")}
            for name, words in SCORES.items()
        },
        "tasks": {name: {"label": words[0], "phrase": words[1]} for name, words in TASKS.items()},
        "probes": PROBES,
        "modes": MODES,
        "method": METHOD,
    }
