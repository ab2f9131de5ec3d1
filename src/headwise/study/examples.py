"""One sentence per leading head in which it does what it was found for."""

from __future__ import annotations

from typing import Any

import torch

from headwise.attention import attention_weights, head_statistics
from headwise.models import Checkpoint, HeadCall
from headwise.models.documents import Piece
from headwise.study.scores import plain, text_relations

_FIRST_QUERY = 8  # before that there is too little to look back on


def find_examples(
    checkpoint: Checkpoint,
    pieces: list[Piece],
    leaders: dict[str, list[tuple[int, int]]],
    delimiters: frozenset[int],
    length: int = 96,
) -> list[dict[str, Any]]:
    """For every leading head the query, among a few pieces of text, that puts most mass on the head's relation.

    Args:
        checkpoint: the model.
        pieces: the text to look through.
        leaders: for every score its leading heads.
        delimiters: ids that count as delimiters.
        length: how many tokens of each piece are read.

    Returns:
        Dictionaries with ``layer``, ``head``, ``score``, ``document``, ``query`` (its position), ``tokens`` (texts from
        the start up to the query; for an encoder the whole piece) and ``weights`` (of the query on these tokens).
        They are picked for showing, not for measuring.
    """
    best: dict[tuple[str, int, int], dict[str, Any]] = {}
    wanted = {layer for heads in leaders.values() for layer, _ in heads}
    for piece in pieces if wanted else ():
        tokens = torch.tensor([piece.tokens[:length]])
        if tokens.shape[1] <= _FIRST_QUERY:
            continue

        def look(call: HeadCall, piece: Piece = piece, tokens: torch.Tensor = tokens) -> None:
            if call.layer in wanted:
                _look(call, piece, tokens, checkpoint, leaders, delimiters, best)

        with torch.inference_mode(), checkpoint.observe(look):
            checkpoint.body(tokens)
    order = [(score, *head) for score, heads in leaders.items() for head in heads]
    return [best[key] for key in order if key in best]


def _look(
    call: HeadCall,
    piece: Piece,
    tokens: torch.Tensor,
    checkpoint: Checkpoint,
    leaders: dict[str, list[tuple[int, int]]],
    delimiters: frozenset[int],
    best: dict[tuple[str, int, int], dict[str, Any]],
) -> None:
    relations = plain(text_relations(tokens, delimiters, seed=0))
    statistics = head_statistics(call.query, call.key, relations, **call.arguments)
    weights = attention_weights(call.query, call.key, **call.arguments)[0]  # [H, L, S]; the pieces are short
    for score, heads in leaders.items():
        index = statistics.names.index(score)
        for layer, head in heads:
            if layer != call.layer:
                continue
            informative = statistics.informative[index, 0].expand(weights.shape[0], -1)[head]
            mass = statistics.mass[index, 0, head].masked_fill(~informative, -1)
            mass[:_FIRST_QUERY] = -1
            query = int(mass.argmax())
            earlier = best.get((score, layer, head))
            if mass[query] <= (earlier["mass"] if earlier else 0.0):
                continue
            stop = query + 1 if checkpoint.causal else tokens.shape[1]
            best[score, layer, head] = {
                "layer": layer,
                "head": head,
                "score": score,
                "document": piece.document,
                "query": query,
                "mass": float(mass[query]),
                "tokens": token_texts(checkpoint.tokenizer, tokens[0, :stop].tolist()),
                "weights": [round(weight, 5) for weight in weights[head, query, :stop].tolist()],
            }


def token_texts(tokenizer: Any, tokens: list[int]) -> list[str]:
    """What each token adds to the text before it: with its leading space, which some tokenizers drop at a start."""
    texts = []
    for index, token in enumerate(tokens):
        before = tokenizer.decode(tokens[index - 1 : index]) if index else ""
        both = tokenizer.decode(tokens[max(0, index - 1) : index + 1])
        # Half a character decodes to a replacement mark that the next token mends; then the token stands alone.
        texts.append(both[len(before) :] if both.startswith(before) else tokenizer.decode([token]))
    return texts
