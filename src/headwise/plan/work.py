"""What attention computes: multiply-adds of its matrices, of scores and of values, and elements of its softmax.

A multiply-add counts as two FLOPs. Additions of biases, norms, rotary positions, the exponentials themselves and all
that is not attention (MLPs, recurrent mixers, embeddings) are not counted. A decode step is the last of ``context``
tokens, those before it being cached.

Latent attention (MLA) can be computed in two ways. Expanded: keys and values of every head are made from the latents;
while decoding, from all cached latents again for every token. Absorbed: the matrix that makes them is moved to the
query and the output, once per token, and scores and values are taken in the latent space.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headwise.plan.errors import PlanError
from headwise.plan.layers import Architecture, Attention, Layer, Projection
from headwise.plan.pairs import Pairs, decode_pairs, prefill_pairs
from headwise.plan.states import Encoder, Grows

__all__ = [
    "Parameters",
    "Work",
    "attention_parameters",
    "decode_work",
    "encoder_tokens",
    "has_absorbed",
    "prefill_work",
]

# The matrix of latent attention that makes keys and values of every head from latents: what absorbing moves.
EXPANDING = "key value up"


@dataclass(frozen=True)
class Parameters:
    """The parameters of all attention matrices.

    Attributes:
        total: weights and biases.
        biases: those of them that are biases.
        by_name: weights and biases for each name of a projection, such as ``query`` or, packed, ``query key value``.
        equations: for each set of layers with the same matrices, the sum written out.
    """

    total: int
    biases: int
    by_name: dict[str, int]
    equations: tuple[str, ...]


@dataclass(frozen=True)
class Work:
    """What attention computes, over all layers and sequences.

    Attributes:
        projections: FLOPs of the matrices.
        scores: FLOPs of queries with keys.
        values: FLOPs of weights with values; of an indexer, of adding up the scores of its heads.
        softmax: elements over which softmaxes are taken, which is also what maps hold if every layer keeps its own.
        largest_map: elements of the maps of the one attention where they are most: what is held if none is kept.
    """

    projections: int = 0
    scores: Pairs = field(default_factory=Pairs)
    values: Pairs = field(default_factory=Pairs)
    softmax: Pairs = field(default_factory=Pairs)
    largest_map: Pairs = field(default_factory=Pairs)

    @property
    def total(self) -> Pairs:
        """FLOPs of matrices, scores and values together."""
        return self.scores + self.values + Pairs(self.projections, self.projections, self.projections)

    def as_dict(self) -> dict[str, Any]:
        """All of it by name."""
        return {
            "projections": self.projections,
            "scores": self.scores.as_dict(),
            "values": self.values.as_dict(),
            "total": self.total.as_dict(),
            "softmax_elements": self.softmax.as_dict(),
            "map_elements": self.softmax.as_dict(),
            "largest_map_elements": self.largest_map.as_dict(),
        }


def attention_parameters(architecture: Architecture) -> Parameters:
    """Count the attention matrices of all layers; a matrix that layers share counts once."""
    by_name: dict[str, int] = {}
    layers: dict[tuple[Projection, ...], int] = {}
    biases = 0
    for attention in _attentions(architecture):
        layers[attention.projections] = layers.get(attention.projections, 0) + 1
        for projection in attention.projections:
            by_name[projection.name] = by_name.get(projection.name, 0) + projection.parameters
            biases += 0 if projection.shared or not projection.bias else projection.outputs
    equations = tuple(_equation(projections, count) for projections, count in layers.items() if projections)
    return Parameters(sum(by_name.values()), biases, by_name, equations)


def has_absorbed(architecture: Architecture) -> bool:
    """Whether some layer can be computed in the absorbed way too."""
    return any(attention.absorbed is not None for attention in _attentions(architecture))


def prefill_work(
    architecture: Architecture, context: int, batch: int = 1, encoder_length: int | None = None, absorbed: bool = False
) -> Work:
    """What it takes to read ``context`` tokens of ``batch`` sequences at once, and their encoder's tokens.

    Args:
        architecture: whose attention.
        context: tokens of a sequence.
        batch: sequences.
        encoder_length: tokens of the encoder; None: what the architecture says.
        absorbed: whether latent attention is computed in the absorbed way.

    Raises:
        PlanError: there is cross attention and nothing says how long the encoder's text is.
    """
    total = Work()
    for layer in architecture.layers:
        for attention in layer.attentions:
            encoder = encoder_tokens(architecture, attention, encoder_length)
            tokens = encoder if _inside_encoder(attention) else context
            pairs = prefill_pairs(attention.extent, attention.causal, tokens, encoder)
            flops = sum(
                2 * each.weights * (encoder if _reads_encoder(attention, each) else tokens)
                for each in attention.projections
            )
            total = _add(total, attention, flops, pairs, batch, absorbed)
    return total


def decode_work(
    architecture: Architecture, context: int, batch: int = 1, encoder_length: int | None = None, absorbed: bool = False
) -> Work:
    """What the last of ``context`` tokens takes, in each of ``batch`` sequences; nothing for a model that only encodes.

    The arguments and errors are those of :func:`prefill_work`.
    """
    total = Work()
    for layer in architecture.layers:
        for attention in layer.attentions:
            if _inside_encoder(attention) or _encodes_only(attention):
                continue
            encoder = encoder_tokens(architecture, attention, encoder_length)
            pairs = decode_pairs(attention.extent, context, encoder)
            pairs = Pairs(pairs.visible, pairs.bound, max(pairs.dense, _held(layer, attention, context)))
            flops = 0
            for each in attention.projections:
                expands = each.name == EXPANDING and not absorbed
                times = 0 if _reads_encoder(attention, each) else pairs.dense if expands else 1
                flops += 2 * each.weights * times
            total = _add(total, attention, flops, pairs, batch, absorbed)
    return total


def encoder_tokens(architecture: Architecture, attention: Attention, asked: int | None) -> int:
    """How many tokens of the encoder an attention has to do with; 0 where it has nothing to do with one.

    Raises:
        PlanError: it has, and nothing says how many.
    """
    if not isinstance(attention.extent, Encoder):
        return 0
    for length in (asked, attention.extent.length, architecture.encoder_length):
        if length is not None:
            return length
    raise PlanError(
        f"--encoder-length: expected how many tokens the encoder of {architecture.model_type} reads, the config "
        "doesn't say"
    )


def _attentions(architecture: Architecture) -> Iterator[Attention]:
    return (attention for layer in architecture.layers for attention in layer.attentions)


def _inside_encoder(attention: Attention) -> bool:
    """Self attention over the encoder's tokens: done once, before the decoder starts."""
    return isinstance(attention.extent, Encoder) and attention.kind != "cross"


def _encodes_only(attention: Attention) -> bool:
    """Self attention that sees later tokens, as in BERT: there is no next token."""
    return not attention.causal and attention.kind != "cross"


def _held(layer: Layer, attention: Attention, context: int) -> int:
    """Tokens whose keys lie there, be they seen or not: an attention to chosen keys (top-k) keeps all of them."""
    kept = (state.extent for state in layer.states if state.kind == attention.kind)
    return next((extent.tokens(context) for extent in kept if isinstance(extent, Grows)), 0)


def _reads_encoder(attention: Attention, projection: Projection) -> bool:
    """Keys and values of cross attention are made from the encoder's tokens, once."""
    return attention.kind == "cross" and "query" not in projection.name.split() and projection.name != "output"


def _add(total: Work, attention: Attention, projections: int, pairs: Pairs, batch: int, absorbed: bool) -> Work:
    score_dim, value_dim = attention.score_dim, attention.value_dim
    if absorbed and attention.absorbed is not None:
        score_dim, value_dim = attention.absorbed
    per_element = pairs * (attention.heads * batch)
    softmax = per_element
    if attention.kind == "indexer":
        # It only ranks keys: no softmax is taken, the scores of its heads are weighted and added up.
        softmax, value_dim = Pairs(), 1
    return Work(
        total.projections + projections * batch,
        total.scores + per_element * (2 * score_dim),
        total.values + per_element * (2 * value_dim),
        total.softmax + softmax,
        total.largest_map.most(softmax),
    )


def _equation(projections: tuple[Projection, ...], count: int) -> str:
    terms = [
        f"{each.inputs:,} x {each.outputs:,}" + (f" + {each.outputs:,}" if each.bias else "")
        for each in projections
        if not each.shared
    ]
    return f"{count} x ({' + '.join(terms)})" if terms else f"{count} x 0, shared"
