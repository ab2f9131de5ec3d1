"""FLOPs against PyTorch's counter, which sees every matrix product that an eager model of transformers computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headwise.plan import plan

TOKENS, BATCH = 23, 2
SMALL = {"vocab_size": 31, "num_hidden_layers": 3, "max_position_embeddings": 64}
# model_type: the config's fields, and how its attention modules are called.
MODELS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "llama": (
        SMALL | {"hidden_size": 30, "intermediate_size": 14, "num_attention_heads": 6, "num_key_value_heads": 2,
                 "head_dim": 10, "attention_bias": True},
        ("self_attn",),
    ),
    "gemma2": (
        SMALL | {"hidden_size": 30, "intermediate_size": 14, "num_attention_heads": 6, "num_key_value_heads": 3,
                 "head_dim": 10, "sliding_window": 7},
        ("self_attn",),
    ),
    "gemma3_text": (
        SMALL | {"hidden_size": 30, "intermediate_size": 14, "num_attention_heads": 6, "num_key_value_heads": 3,
                 "head_dim": 10, "sliding_window": 7, "sliding_window_pattern": 3},
        ("self_attn",),
    ),
    "mistral": (
        SMALL | {"hidden_size": 30, "intermediate_size": 14, "num_attention_heads": 6, "num_key_value_heads": 2,
                 "head_dim": 10, "sliding_window": 5},
        ("self_attn",),
    ),
    "qwen3": (
        SMALL | {"hidden_size": 30, "intermediate_size": 14, "num_attention_heads": 6, "num_key_value_heads": 2,
                 "head_dim": 14},
        ("self_attn",),
    ),
    "gpt_oss": (
        SMALL | {"hidden_size": 32, "intermediate_size": 16, "num_attention_heads": 6, "num_key_value_heads": 2,
                 "head_dim": 10, "sliding_window": 5, "num_local_experts": 2, "num_experts_per_tok": 1,
                 "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        ("self_attn",),
    ),
    "phi3": (
        SMALL | {"hidden_size": 30, "intermediate_size": 14, "num_attention_heads": 3, "num_key_value_heads": 1,
                 "pad_token_id": 0},
        ("self_attn",),
    ),
    "falcon": (
        {"vocab_size": 31, "num_hidden_layers": 3, "hidden_size": 30, "num_attention_heads": 3,
         "max_position_embeddings": 64, "new_decoder_architecture": True, "num_kv_heads": 1},
        ("self_attention",),
    ),
    "gpt_neox": (
        SMALL | {"hidden_size": 24, "intermediate_size": 14, "num_attention_heads": 3},
        ("attention",),
    ),
    "gpt2": (
        {"vocab_size": 31, "n_layer": 3, "n_embd": 30, "n_head": 3, "n_positions": 64},
        ("attn",),
    ),
    "qwen3_next": (
        SMALL | {"hidden_size": 32, "intermediate_size": 16, "num_attention_heads": 6, "num_key_value_heads": 2,
                 "head_dim": 10, "num_hidden_layers": 4, "mlp_only_layers": [0, 1, 2, 3], "num_experts": 2,
                 "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 5,
                 "linear_value_head_dim": 7},
        ("self_attn",),
    ),
    "deepseek_v3": (
        SMALL | {"hidden_size": 30, "intermediate_size": 14, "moe_intermediate_size": 11, "num_attention_heads": 3,
                 "num_key_value_heads": 3, "q_lora_rank": 13, "kv_lora_rank": 17, "qk_nope_head_dim": 7,
                 "qk_rope_head_dim": 4, "v_head_dim": 5, "first_k_dense_replace": 3, "n_routed_experts": 8},
        ("self_attn",),
    ),
    "deepseek_v32": (
        SMALL | {"hidden_size": 30, "intermediate_size": 14, "moe_intermediate_size": 11, "num_attention_heads": 3,
                 "num_key_value_heads": 3, "q_lora_rank": 13, "kv_lora_rank": 17, "qk_nope_head_dim": 7,
                 "qk_rope_head_dim": 4, "v_head_dim": 5, "first_k_dense_replace": 3, "n_routed_experts": 8,
                 "index_n_heads": 2, "index_head_dim": 8, "index_topk": 5},
        ("self_attn",),
    ),
}  # fmt: skip


def counted(model: Any, names: tuple[str, ...], expected: int, **inputs: Any) -> tuple[int, Any]:
    """FLOPs inside of the modules of that name, of which there are as many as expected, and what the model gave."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        output = model(**inputs)
    counts = counter.get_flop_counts()
    found = [path for path in counts if path.split(".")[-1] in names]
    assert len(found) == expected, sorted(counts)
    return sum(sum(counts[path].values()) for path in found), output


def eager(model_type: str, fields: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **fields)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


@pytest.mark.parametrize("model_type", MODELS)
def test_prefill_and_a_step_are_what_the_counter_sees(model_type):
    fields, names = MODELS[model_type]
    model = eager(model_type, fields)
    tokens = torch.randint(1, 31, (BATCH, TOKENS))
    told = plan(fields | {"model_type": model_type}, context=TOKENS, batch=BATCH)
    live = plan(model, context=TOKENS, batch=BATCH)
    assert (live.prefill, live.decode, live.parameters) == (told.prefill, told.decode, told.parameters)
    assert (live.model, live.total) == (type(model).__name__, told.total)
    layers = sum(bool(layer.attentions) for layer in told.architecture.layers)
    whole, _ = counted(model, names, layers, input_ids=tokens, use_cache=False)
    assert told.prefill.total.dense == whole
    _, output = counted(model, names, layers, input_ids=tokens[:, :-1], use_cache=True)
    step, _ = counted(model, names, layers, input_ids=tokens[:, -1:], past_key_values=output.past_key_values)
    assert told.decode.total.dense == step


def test_an_encoder_and_a_decoder():
    from transformers import T5Config, T5ForConditionalGeneration

    fields = {"vocab_size": 31, "d_model": 30, "d_kv": 7, "d_ff": 14, "num_layers": 2, "num_heads": 3,
              "num_decoder_layers": 3, "decoder_start_token_id": 0}  # fmt: skip
    model = T5ForConditionalGeneration(T5Config(**fields))
    model.set_attn_implementation("eager")
    model.eval()
    source, target = torch.randint(1, 31, (BATCH, 13)), torch.randint(1, 31, (BATCH, TOKENS))
    told = plan(fields | {"model_type": "t5"}, context=TOKENS, batch=BATCH, encoder_length=13)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=source, decoder_input_ids=target, use_cache=False)
    counts = counter.get_flop_counts()
    found = [path for path in counts if path.split(".")[-1] in ("SelfAttention", "EncDecAttention")]
    assert len(found) == 2 + 3 + 3
    assert told.prefill.total.dense == sum(sum(counts[path].values()) for path in found)
    with torch.no_grad():
        encoded = model.encoder(input_ids=source)
        first = model(encoder_outputs=encoded, decoder_input_ids=target[:, :-1], use_cache=True)
        with FlopCounterMode(display=False) as counter:
            model(encoder_outputs=encoded, decoder_input_ids=target[:, -1:], past_key_values=first.past_key_values)
    counts = counter.get_flop_counts()
    found = [path for path in counts if path.split(".")[-1] in ("SelfAttention", "EncDecAttention")]
    assert told.decode.total.dense == sum(sum(counts[path].values()) for path in found)


def test_an_encoder_alone():
    from transformers import BertConfig, BertModel

    fields = {"vocab_size": 31, "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 3,
              "intermediate_size": 14, "max_position_embeddings": 64}  # fmt: skip
    model = BertModel(BertConfig(**fields, attn_implementation="eager")).eval()
    told = plan(fields | {"model_type": "bert"}, context=TOKENS, batch=BATCH)
    flops, _ = counted(model, ("attention",), 2, input_ids=torch.randint(1, 31, (BATCH, TOKENS)))
    assert told.prefill.total.dense == flops
    assert told.decode.total.dense == 0


def test_the_counter_sees_nothing_in_the_fused_operation_on_a_cpu():
    """Why the models above are eager."""
    query = torch.randn(1, 3, 11, 8)
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert counter.get_total_flops() == 0
