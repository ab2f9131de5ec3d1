"""What can't be converted is refused before any work."""

from __future__ import annotations

from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Rows
from headwise.models.questions import check_length
from headwise.models.weights import kind_of, rotary_of
from headwise.surgery.sharing.recipe import Recipe

__all__ = ["check_convertible", "check_text"]

_TOKENS_PER_UNKNOWN = 4  # fewer tell more about the text than about the model


def check_convertible(checkpoint: Checkpoint, num_kv_heads: int, recipe: Recipe) -> None:
    """Refuse what can't be converted, before any work.

    Raises:
        UserError: it can't, for the reason that the text gives.
    """
    packing, name = kind_of(checkpoint), checkpoint.name
    if all(layout.num_kv_heads == num_kv_heads for layout in checkpoint.layouts):
        raise UserError(
            f"{name}: expected fewer KV heads than it has, got {num_kv_heads}, which every layer has already"
        )
    if not checkpoint.causal:
        raise UserError(f"{name}: expected a decoder, got an encoder, which keeps no keys and values between tokens")
    for layer, layout in enumerate(checkpoint.layouts):
        if not 0 < num_kv_heads <= layout.num_kv_heads or layout.num_kv_heads % num_kv_heads:
            fitting = [str(count) for count in range(1, layout.num_kv_heads) if layout.num_kv_heads % count == 0]
            raise UserError(
                f"{name}: expected a number of KV heads that divides the {layout.num_kv_heads} of layer {layer} "
                f"({', '.join(fitting) or 'it can have no fewer'}), got {num_kv_heads}"
            )
        if rotary_of(checkpoint, layer).norms and recipe.method != "first":
            raise UserError(
                f"{name}: expected keys without norms for the method {recipe.method}, got {_kind(checkpoint)}, whose "
                "keys are normalised after the projection, so that no mix of heads keeps what they compute; "
                "only --method first is offered"
            )
    if not packing.shares and not (_kind(checkpoint) == "gpt2" and num_kv_heads == 1):
        more = "; one KV head for all can be saved as gpt_bigcode" if _kind(checkpoint) == "gpt2" else ""
        raise UserError(
            f"{name}: expected an architecture that can share KV heads, got {_kind(checkpoint)}, which keeps "
            f"{packing.name}{more}"
        )


def check_text(checkpoint: Checkpoint, rows: Rows | None, recipe: Recipe) -> None:
    """Refuse calibration text that can't determine what is fitted to it.

    Raises:
        UserError: it is missing, or too short; the text says how much is needed.
    """
    if not recipe.needs_text:
        return
    width = checkpoint.model.config.hidden_size
    unknowns = max(width, *(layout.num_heads * layout.value_dim for layout in checkpoint.layouts))
    needed, got = _TOKENS_PER_UNKNOWN * unknowns, 0 if rows is None else rows.tokens.numel()
    if rows is not None and got >= needed and len(rows) < 3:
        raise UserError(
            f"{checkpoint.name}: expected 3 rows of calibration or more, one to judge by and two to fit, got "
            f"{len(rows)} of {rows.tokens.shape[1]} tokens; ask for shorter rows, or more tokens"
        )
    if rows is None or got < needed:
        raise UserError(
            f"{checkpoint.name}: expected at least {needed:,} tokens of calibration, "
            f"{_TOKENS_PER_UNKNOWN} for each of the {unknowns} inputs of a projection, got {got:,}; give more text, or "
            "use the method mean or first, which need none"
        )
    check_length(checkpoint, rows.tokens.shape[1])


def _kind(checkpoint: Checkpoint) -> str:
    return str(checkpoint.model.config.model_type)
