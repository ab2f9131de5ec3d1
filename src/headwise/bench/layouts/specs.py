"""Head layouts by name: what `mha`, `gqa:4`, `mla:64+16`, `window:512`, `mixed:2@512` and `mha/16` stand for.

Standard library only. Symbols: ``E`` model width, ``H`` query heads, ``G`` KV heads, ``D`` head dim, ``r`` latent,
``p`` rotary part of a latent layout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from headwise.errors import UserError

__all__ = ["FORMS", "LayoutSpec", "Shape", "default_layouts", "divisors", "parse_layouts"]

FORMS = "mha, gqa:KVHEADS, mqa, mla:RANK+ROPE, window:KEYS or mixed:LOCALHEADS@KEYS"
_NUMBER = r"([0-9]{1,9})"
_WIDEST = 1 << 20  # 64 times the widest model there is; the matrices of one layer take 16 TiB
_WORD = re.compile(
    rf"(mha|mqa|gqa:{_NUMBER}|mla:{_NUMBER}\+{_NUMBER}|window:{_NUMBER}|mixed:{_NUMBER}@{_NUMBER})(?:/{_NUMBER})?",
    re.ASCII,
)
_MOST_LAYOUTS = 16
_LEAST_SLACK = 16


@dataclass(frozen=True)
class Shape:
    """What all layouts have in common.

    Attributes:
        width: ``E``.
        heads: ``H`` of layouts that name no number of heads.
        head_dim: ``D`` of those. Others share the same ``H * D``, so that their query projections are equally large.

    Raises:
        UserError: ``D`` is odd: rotary positions turn pairs.
    """

    width: int
    heads: int
    head_dim: int

    def __post_init__(self) -> None:
        _check_even("--heads", self.heads, self.head_dim)

    @classmethod
    def divided(cls, width: int, heads: int) -> Shape:
        """``D = E / H``.

        Raises:
            UserError: it is no whole even number.
        """
        if not 2 <= width <= _WIDEST or width % 2:
            raise UserError(
                f"--width: expected an even number of 2 to {_WIDEST:,}, which heads of an even width divide, "
                f"got {width}"
            )
        if heads < 1 or width % heads:
            raise UserError(
                f"--heads: expected a number of heads that divides --width {width}, got {heads}; use one of "
                f"{_listed(_numbers_of_heads(width))}"
            )
        return cls(width, heads, width // heads)


@dataclass(frozen=True)
class LayoutSpec:
    """One layout, with all its sizes.

    Attributes:
        name: as it was typed, in small letters.
        width: ``E``.
        heads: ``H``.
        kv_heads: ``G``; of a latent layout ``H``, since every head has keys and values of its own.
        head_dim: ``D``, also of values; of a latent layout the part of a key that carries no position.
        latent: ``r``; 0: keys and values are projected as they are.
        rope: ``p``; 0 as well.
        local_heads: heads with a window, the first ones.
        window: keys that they see, their own included, as a ``sliding_window`` of Hugging Face; 0: there are none.
    """

    name: str
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    latent: int = 0
    rope: int = 0
    local_heads: int = 0
    window: int = 0

    @property
    def grouped(self) -> bool:
        """Whether query heads share KV heads, so that another implementation might repeat these."""
        return self.kv_heads < self.heads

    @property
    def slack(self) -> int:
        """Free slots of a window's buffer behind what is seen; without any, every token would move the whole window."""
        return max(_LEAST_SLACK, self.window // 8)

    @property
    def sizes(self) -> tuple[Any, ...]:
        """All that decides what is computed: two layouts of equal sizes are one."""
        return tuple(value for name, value in vars(self).items() if name != "name")


def parse_layouts(text: str, shape: Shape) -> tuple[LayoutSpec, ...]:
    """The layouts of ``mha,gqa:4,mqa,mla:64+16,window:512,mixed:2@512``; behind a slash, a number of heads: ``mha/16``.

    ``gqa:G`` has ``G`` KV heads; the others but ``mqa`` have as many as query heads. ``mla:r+p`` keeps a latent of
    ``r`` elements and a rotary key of ``p``. All heads of ``window:W`` see ``W`` keys, their own included; of
    ``mixed:N@W`` the first ``N`` heads do, and the others see everything. Capitals count as small letters.

    Raises:
        UserError: a word is none of these, doesn't fit the shape, or stands for the same as one before.
    """
    words = [word.strip() for word in text.split(",")]
    if len(words) > _MOST_LAYOUTS:
        raise UserError(f"--layouts: expected at most {_MOST_LAYOUTS} layouts, got {len(words)}; leave some out")
    specs: dict[tuple[Any, ...], LayoutSpec] = {}
    for word in words:
        spec = _layout(word, shape)
        same = specs.setdefault(spec.sizes, spec)
        if same is not spec:
            also = f"{spec.name} twice" if same.name == spec.name else f"{spec.name}, which is what {same.name} is"
            raise UserError(f"--layouts: expected each layout once, got {also}; leave one out")
    return tuple(specs.values())


def default_layouts(heads: int) -> str:
    """MHA, groups of two and four query heads where they can be formed, and MQA: for 8 heads 8, 4, 2 and 1 KV heads."""
    kv_heads = [heads // size for size in (2, 4) if heads % size == 0 and heads // size > 1]
    return ",".join(["mha", *(f"gqa:{count}" for count in kv_heads), *(["mqa"] if heads > 1 else [])])


def divisors(number: int) -> list[int]:
    """All whole numbers that divide it."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def _layout(word: str, shape: Shape) -> LayoutSpec:
    typed, word = word, word.lower()
    match = _WORD.fullmatch(word)
    if match is None:
        raise UserError(
            f"--layouts: expected {FORMS}, each with /HEADS behind it for another number of query heads, got "
            f"{typed[:60]!r}"
        )
    kind, *numbers, heads_word = match.groups()
    kv_heads, latent, rope, window, local, local_window = (None if each is None else int(each) for each in numbers)
    heads, head_dim = _heads(word, shape, heads_word)
    sizes: dict[str, Any] = {"name": word, "width": shape.width, "heads": heads, "kv_heads": heads}
    sizes["head_dim"] = head_dim
    if latent is not None and rope is not None:
        return LayoutSpec(**sizes | _latent(word, latent, rope))
    if window is not None:
        if heads_word is not None:
            raise UserError(
                f"--layouts {word}: expected window:KEYS without a number behind it, which elsewhere says which layers "
                f"have the window, and here there is one; for {heads_word} heads write mixed:{heads_word}@{window}/"
                f"{heads_word}"
            )
        return LayoutSpec(**sizes | _windows(word, heads, heads, window))
    if local is not None and local_window is not None:
        return LayoutSpec(**sizes | _windows(word, heads, local, local_window))
    wanted = 1 if kind == "mqa" else heads if kv_heads is None else kv_heads
    if wanted < 1 or heads % wanted:
        raise UserError(
            f"--layouts {word}: expected a number of KV heads that divides the {heads} query heads, got {wanted}; use "
            f"one of {_listed(divisors(heads))}"
        )
    return LayoutSpec(**sizes | {"kv_heads": wanted})


def _heads(word: str, shape: Shape, heads_word: str | None) -> tuple[int, int]:
    if heads_word is None:
        return shape.heads, shape.head_dim
    heads, features = int(heads_word), shape.heads * shape.head_dim
    if heads < 1 or features % heads:
        raise UserError(
            f"--layouts {word}: expected a number of heads that divides the {features} features of all heads, got "
            f"{heads}; use one of {_listed(_numbers_of_heads(features))}"
        )
    _check_even(f"--layouts {word}", heads, features // heads)
    return heads, features // heads


def _latent(word: str, latent: int, rope: int) -> dict[str, int]:
    if latent < 1:
        raise UserError(f"--layouts {word}: expected a latent of at least 1 element, got {latent}")
    if rope < 2 or rope % 2:
        raise UserError(
            f"--layouts {word}: expected an even rotary part of at least 2 elements, since positions turn pairs, got "
            f"{rope}; write mla:{latent}+{rope + 1 if rope else 2}"
        )
    return {"latent": latent, "rope": rope}


def _windows(word: str, heads: int, local: int, window: int) -> dict[str, int]:
    if window < 1:
        raise UserError(
            f"--layouts {word}: expected a window of at least 1 key, the query's own, got {window}; window:1 sees "
            "nothing else"
        )
    if not 1 <= local <= heads:
        raise UserError(
            f"--layouts {word}: expected 1 to {heads} local heads, of the {heads} that there are, got {local}; "
            f"{'mha has none' if not local else f'mixed:{heads}@{window} makes all of them local'}"
        )
    return {"local_heads": local, "window": window}


def _numbers_of_heads(features: int) -> list[int]:
    """Those that leave every head an even width."""
    return [heads for heads in divisors(features) if features // heads % 2 == 0]


def _check_even(who: str, heads: int, head_dim: int) -> None:
    if head_dim < 2 or head_dim % 2:
        raise UserError(
            f"{who}: expected heads of an even width, since rotary positions turn pairs, got {heads} heads of "
            f"{head_dim}; use another number of heads or another width"
        )


def _listed(numbers: list[int]) -> str:
    shown = numbers if len(numbers) <= 12 else [*numbers[:6], "...", *numbers[-5:]]
    return ", ".join(map(str, shown))
