"""GPT-2 whose query heads share one KV head, as GPTBigCode: the same function with the shared head stored once.

GPT-2 has keys and values for every query head, so a shared one stands in it repeated. GPTBigCode (Ben Allal et al.
2023, SantaCoder) is GPT-2 with multi-query attention (Shazeer 2019), in plain linear layers.

Symbols: H query heads, D head dim, E model width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.head_weights import HeadWeights
from headwise.models.weights import heads_of
from headwise.surgery.formats import NotHeldError, class_name, config_for

__all__ = ["gpt_bigcode_of", "repeats_one_kv_head"]


def repeats_one_kv_head(checkpoint: Checkpoint) -> bool:
    """Whether a GPT-2 has several query heads and, in each layer, the same keys and values for all of them."""
    if checkpoint.model.config.model_type != "gpt2" or checkpoint.max_heads == 1:
        return False
    return all(_repeats(heads_of(checkpoint, layer)) for layer in range(checkpoint.num_layers))


def gpt_bigcode_of(checkpoint: Checkpoint) -> Any:
    """A GPTBigCode model that computes what a GPT-2 with one repeated KV head computes.

    Args:
        checkpoint: a GPT-2 with all its query heads; it stays as it is. Weights that need no change are shared.

    Returns:
        The transformers model, on the device and of the dtype of the checkpoint's.

    Raises:
        UserError: it is no GPT-2, has keys and values that differ from head to head, or settings that GPTBigCode lacks.
    """
    import transformers

    if not repeats_one_kv_head(checkpoint):
        raise UserError(
            f"{checkpoint.name}: expected a gpt2 whose heads all have the same keys and values, for gpt_bigcode, got "
            "others; convert it to one KV head first"
        )
    model = checkpoint.model
    layers = [(layout.num_heads, 1) for layout in checkpoint.layouts]
    try:
        config = config_for(model.config, layers, "gpt_bigcode")
        made_class = getattr(transformers, class_name(type(model).__name__, "gpt_bigcode"))
    except NotHeldError as error:
        raise UserError(f"{checkpoint.name}: {error}; save it as headwise or stock instead") from error
    # Not on the meta device: what is computed from the config, and not stored, must be there.
    made = made_class._from_config(config, dtype=model.dtype)
    made.load_state_dict(_state(checkpoint), strict=True, assign=True)
    made.tie_weights()
    return made.to(checkpoint.device).eval().requires_grad_(False)


def _repeats(weights: HeadWeights) -> bool:
    parts = weights.key, weights.value, weights.key_bias, weights.value_bias
    return all(part is None or bool((part == part[:1]).all()) for part in parts)


def _state(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The weights by the names that GPTBigCode gives them, which are those of GPT-2."""
    model = checkpoint.model
    state: dict[str, Tensor] = dict(model.state_dict())
    for name, module in model.named_modules():
        if _is_conv(module):
            state[f"{name}.weight"] = module.weight.detach().T.contiguous()
    names = {module: name for name, module in model.named_modules()}
    for module, (layer, *_) in checkpoint.attention_layers.items():
        weight, bias = _packed(heads_of(checkpoint, layer))
        state[f"{names[module]}.c_attn.weight"], state[f"{names[module]}.c_attn.bias"] = weight, bias
    return state


def _is_conv(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"


def _packed(weights: HeadWeights) -> tuple[Tensor, Tensor]:
    """Rows of all queries, then one key, then one value: ``[(H + 2) D, E]`` and its bias."""
    assert weights.query_bias is not None
    assert weights.key_bias is not None
    assert weights.value_bias is not None
    rows = torch.cat([weights.query, weights.key[:1], weights.value[:1]]).flatten(0, 1)
    return rows, torch.cat([weights.query_bias, weights.key_bias[:1], weights.value_bias[:1]]).flatten()
