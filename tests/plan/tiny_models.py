"""Building and running the models of ``tiny.py``, and reading the bytes of their caches."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import warnings
from collections import Counter
from typing import Any

import torch
import transformers
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
)
from transformers.cache_utils import EncoderDecoderCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from tests.plan.tiny import DECODERS, ENCODER_DECODERS, ENCODERS, VISION, WRAPPED, fields_of, model_type_of

__all__ = ["ENCODER_TOKENS", "Run", "build", "build_wrapped", "cache_bytes", "fields", "projections_of", "saved_fields"]

DTYPE = torch.bfloat16
ENCODER_TOKENS = 11
_BY_NAME = {
    "qwen2_5_omni_text": "Qwen2_5OmniThinkerTextModel",
    "qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextModel",
    "step3p5": "Step3p7TextModel",
    "mllama_text_model": "MllamaTextModel",
}


def fields(case: str) -> dict[str, Any]:
    """What the config.json of a case says."""
    table = next(table for table in (DECODERS, ENCODER_DECODERS, ENCODERS) if case in table)
    known = {field.name for field in dataclasses.fields(CONFIG_MAPPING[model_type_of(case)])}
    return fields_of(case, known, table)


def build(case: str, dtype: torch.dtype = DTYPE, **changes: Any) -> torch.nn.Module:
    """The model of a case, perhaps with some fields changed, with weights of a fixed seed."""
    torch.manual_seed(0)
    given = fields(case) | changes
    config = CONFIG_MAPPING[given.pop("model_type")](**given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = _maker(config).from_config(config, attn_implementation="eager")
    return model.to(dtype).eval()


def build_wrapped(outer: str) -> tuple[dict[str, Any], torch.nn.Module]:
    """A whole model of several media: what its config.json says, and the model."""
    torch.manual_seed(0)
    given = {"text_config": fields(WRAPPED[outer]), "vision_config": VISION}
    # The class changes what it is given.
    config = CONFIG_MAPPING[outer](**copy.deepcopy(given))
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    return {"model_type": outer, **given}, model.to(DTYPE).eval()


def _maker(config: Any) -> Any:
    if config.model_type == "whisper":
        return AutoModelForSpeechSeq2Seq
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    if config.model_type in _BY_NAME:
        return _ByName(getattr(transformers, _BY_NAME[config.model_type]))
    return AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModel


class _ByName:
    """Models that no auto class builds by their text config."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def from_config(self, config: Any, attn_implementation: str) -> torch.nn.Module:
        config._attn_implementation = attn_implementation
        return self.kind(config)


def saved_fields(model: torch.nn.Module) -> dict[str, Any]:
    """What the config.json says that the model's class writes."""
    return json.loads(model.config.to_json_string())


class Run:
    """A model that reads a prompt, then one token after another.

    Args:
        model: the model.
        cache: the cache to fill; None: the model makes its own.
    """

    def __init__(self, model: torch.nn.Module, cache: Any = None) -> None:
        self.model, self.cache = model, cache
        self._generator = torch.Generator().manual_seed(1)
        self._encoded: dict[str, Any] = {}

    @torch.no_grad()
    def step(self, tokens: int) -> Any:
        """Reads that many tokens of each of two sequences; gives the cache back."""
        ids = self._tokens(tokens)
        if self.model.config.is_encoder_decoder:
            output = self.model(**self._source(), decoder_input_ids=ids, use_cache=True, **self._past())
            self._encoded = {"encoder_outputs": (output.encoder_last_hidden_state,)}
        else:
            output = self.model(input_ids=ids, use_cache=True, **self._image(), **self._past())
        self.cache = cache_of(output)
        return self.cache

    def _tokens(self, count: int) -> torch.Tensor:
        return torch.randint(5, 60, (2, count), generator=self._generator)

    def _past(self) -> dict[str, Any]:
        return {} if self.cache is None else {"cache": self.cache}

    def _source(self) -> dict[str, Any]:
        if self._encoded:
            return self._encoded
        if self.model.config.model_type == "whisper":
            # Two frames of sound for each token of the encoder.
            frames = torch.randn(2, 8, 2 * ENCODER_TOKENS, generator=self._generator)
            return {"input_features": frames.to(DTYPE)}
        return {"input_ids": self._tokens(ENCODER_TOKENS)}

    def _image(self) -> dict[str, Any]:
        """What the vision model gives, with the prompt only."""
        if self.model.config.model_type != "mllama_text_model" or (self.cache and self.cache.get_seq_length()):
            return {}
        vectors = torch.randn(2, ENCODER_TOKENS, self.model.config.hidden_size, generator=self._generator)
        return {"cross_attention_states": vectors.to(DTYPE)}


def cache_of(output: Any) -> Any:
    """The cache that a forward pass gives back; its name changed between releases."""
    cache = getattr(output, "cache", None)
    return output.past_key_values if cache is None else cache


def cache_bytes(cache: Any) -> tuple[int, int]:
    """Bytes of the tensors in a cache, and of the memory that they hold on to, each piece once."""
    tensors = list(_tensors(cache))
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(tensor.nbytes for tensor in tensors), sum(storages.values())


def _tensors(cache: Any) -> Any:
    if isinstance(cache, EncoderDecoderCache):
        yield from _tensors(cache.self_attention_cache)
        yield from _tensors(cache.cross_attention_cache)
        return
    for layer in cache.layers:
        yield from _layer_tensors(layer)
    yield from (tensor for tensor in getattr(cache, "linear_cache", []) if isinstance(tensor, torch.Tensor))


def _layer_tensors(layer: Any) -> Any:
    for name in ("keys", "values", "indexer_keys"):
        if getattr(layer, name, None) is not None:
            yield getattr(layer, name)
    for name in ("conv_states", "recurrent_states"):
        yield from (tensor for tensor in (getattr(layer, name, None) or {}).values() if tensor is not None)


# Where attention lies in a model's names.
_ATTENTION = re.compile(r"(attn|attention|SelfAttention|EncDecAttention|mixer)\b")
_LAYER = re.compile(r"\b(?:layers|h|blocks|block|layer|albert_layer_groups)\.\d+\.")
# What lies there too without being part of it: feed-forward matrices, models of other media, and everything of a
# layer with a recurrent state.
_BESIDES = re.compile(
    r"vision|embed_tokens_extend|\b(up_proj|down_proj|experts|shared_experts|gate|ffn|intermediate)\b"
)
_RECURRENT = ("conv1d", "A_log", "slope_rate")


def projections_of(model: torch.nn.Module) -> Counter[tuple[int, int, bool]]:
    """How often each shape of matrix, (inputs, outputs, bias), occurs in the attention of a model, shared ones once."""
    found: dict[int, tuple[int, int, bool]] = {}
    recurrent = tuple(
        f"{name}." for name, module in model.named_modules() if any(hasattr(module, part) for part in _RECURRENT)
    )
    for name, module in model.named_modules():
        if not isinstance(module, (torch.nn.Linear, transformers.pytorch_utils.Conv1D)):
            continue
        if not _LAYER.search(name) or not _ATTENTION.search(name) or name.startswith(recurrent):
            continue
        if not _BESIDES.search(name):
            inputs, outputs = module.weight.shape
            if isinstance(module, torch.nn.Linear):
                inputs, outputs = outputs, inputs
            found[module.weight.data_ptr()] = (inputs, outputs, module.bias is not None)
    return Counter(found.values())
