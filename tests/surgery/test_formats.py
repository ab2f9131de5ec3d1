"""Which numbers of heads each format holds: asked of the config classes, and of nobody's memory."""

from __future__ import annotations

import pytest
import torch
import transformers

from headwise.surgery.formats import FORMATS, NotHeldError, best_format, class_name, config_for, layers_told
from tests.models import tiny


def config_of(name: str, **changes):
    config = (tiny.DECODERS | tiny.ENCODERS)[name]().config
    return type(config)(**config.to_dict() | changes)


def held(config, form: str) -> list[tuple[int, int]]:
    """Which of all (heads, KV heads) up to six the format holds."""
    found = []
    for heads in range(1, 7):
        for kv_heads in (number for number in range(1, heads + 1) if heads % number == 0):
            try:
                config_for(config, [(heads, kv_heads)] * tiny.LAYERS, form)
            except NotHeldError:
                continue
            found.append((heads, kv_heads))
    return found


def pairs(*numbers: int) -> list[tuple[int, int]]:
    return [(heads, kv_heads) for heads in numbers for kv_heads in range(1, heads + 1) if heads % kv_heads == 0]


@pytest.mark.parametrize(
    ("name", "stock", "own"),
    [
        ("llama", pairs(1, 2, 3, 6), pairs(1, 2, 3, 4, 5, 6)),  # the divisors of a width of 42
        ("gemma2", pairs(1, 2, 3, 6), pairs(1, 2, 3, 4, 5, 6)),
        ("mistral, window 5", pairs(1, 2, 3, 4, 5, 6), pairs(1, 2, 3, 4, 5, 6)),
        ("qwen2", pairs(1, 2, 3, 4, 5, 6), pairs(1, 2, 3, 4, 5, 6)),
        ("qwen3", pairs(1, 2, 3, 4, 5, 6), pairs(1, 2, 3, 4, 5, 6)),
        ("phi3", pairs(1, 2, 3, 4, 5, 6), pairs(1, 2, 3, 4, 5, 6)),
        ("gpt2", [(5, 5)], [(number, number) for number in range(1, 7)]),
        ("gpt-neox", [(5, 5)], [(number, number) for number in range(1, 7)]),
        ("bert", [(5, 5)], [(number, number) for number in range(1, 7)]),
    ],
)
def test_what_each_format_holds(name, stock, own):
    config = config_of(name)
    assert held(config, "stock") == stock
    assert held(config, "mistral") == (pairs(1, 2, 3, 4, 5, 6) if name == "llama" else [])
    assert held(config, "gpt_bigcode") == ([(5, 1)] if name == "gpt2" else [])
    assert held(config, "headwise") == own


@pytest.mark.parametrize("name", ["llama", "mistral, window 5", "qwen2", "qwen3", "gemma2", "phi3"])
def test_a_stock_config_makes_a_model_of_those_sizes(name):
    config = config_of(name)
    width = layers = None
    for heads, kv_heads in held(config, "stock"):
        made = config_for(config, [(heads, kv_heads)] * tiny.LAYERS, "stock")
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(made)
        shapes = {key.split("self_attn.")[-1]: list(tensor.shape) for key, tensor in model.state_dict().items()}
        width, layers = layers_told(made), made.num_hidden_layers
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        assert shapes["o_proj.weight"] == [config.hidden_size, heads * size]
        rows = shapes["qkv_proj.weight" if name == "phi3" else "k_proj.weight"][0]
        assert rows == (heads + 2 * kv_heads if name == "phi3" else kv_heads) * size
        assert width == [(heads, kv_heads)] * layers


def test_the_config_that_is_asked_stays_as_it_was():
    config = config_of("llama")
    before = config.to_dict()
    for form in ("stock", "mistral", "headwise"):
        config_for(config, [(3, 1)] * 3, form)
    assert config.to_dict() == before


def test_a_config_that_says_it_already_is_not_rewritten():
    config = config_of("gpt2")
    assert config_for(config, [(5, 5)] * 3, "stock").to_dict() == config.to_dict()


def test_layers_of_their_own_are_for_headwise_alone():
    for name in ("llama", "qwen2", "phi3"):
        config = config_of(name)
        layers = [(6, 2), (4, 2), (6, 2)]
        assert best_format(config, layers) == "headwise"
        listed = config_for(config, layers, "headwise")
        assert layers_told(listed) == layers
        assert best_format(listed, [(3, 1)] * 3) == "stock"
        assert layers_told(config_for(listed, [(3, 1)] * 3, "stock")) == [(3, 1)] * 3


def test_llama_and_mistral_differ_in_the_fields_that_are_looked_at_alone():
    """What a newer transformers adds to either would have to be looked at too."""
    llama, mistral = (set(kind().to_dict()) for kind in (transformers.LlamaConfig, transformers.MistralConfig))
    assert llama - mistral == {"attention_bias", "mlp_bias", "pretraining_tp"}
    assert mistral - llama == {"sliding_window"}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}},
        {"rope_parameters": {
            "rope_type": "llama3", "factor": 4.0, "rope_theta": 700.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }},
        {"rms_norm_eps": 0.1, "hidden_act": "gelu", "tie_word_embeddings": True},
    ],
    ids=["linear", "llama3", "others"],
)  # fmt: skip
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_mistral_computes_what_llama_computes(changes, implementation):
    config = config_of("llama", **changes)
    llama = tiny.build(lambda: transformers.LlamaForCausalLM(config))
    mistral = transformers.MistralForCausalLM(config_for(config, [(6, 2)] * 3, "mistral")).eval()
    mistral.load_state_dict(llama.state_dict())
    plain = tiny.build(lambda: transformers.LlamaForCausalLM(config_of("llama")))
    logits = []
    for model in (llama, mistral, plain):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            logits.append(model(input_ids=tiny.tokens(2, 61)).logits)
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])  # the settings matter


@pytest.mark.parametrize("name", ["attention_bias", "mlp_bias"])
def test_biases_keep_llama_from_mistral(name):
    config = config_of("llama", **{name: True})
    with pytest.raises(NotHeldError, match=f"mistral has no biases, and this model has {name}"):
        config_for(config, [(4, 2)] * 3, "mistral")
    assert best_format(config, [(4, 2)] * 3) == "headwise"


def test_what_mistral_would_take_for_its_own_is_left_out():
    """Llama ignores them, and Mistral does not."""
    made = config_for(
        config_of("llama", sliding_window=5, layer_types=["sliding_attention"] * 3), [(4, 2)] * 3, "mistral"
    )
    assert made.sliding_window is None
    assert getattr(made, "layer_types", None) is None


def test_a_long_phi3_is_asked_too():
    """Its config wants as many factors as half the width divided by the heads, whatever the width of a head."""
    factors = {"rope_type": "longrope", "short_factor": [1.0] * 3, "long_factor": [2.0] * 3, "rope_theta": 1e4}
    config = config_of("phi3", rope_parameters=factors, original_max_position_embeddings=16)
    with pytest.raises(NotHeldError, match=r"Phi3Config refuses: .* must have length 4, got 3"):
        config_for(config, [(4, 2)] * 3, "stock")
    assert best_format(config, [(4, 2)] * 3) == "headwise"
    assert best_format(config, [(6, 1)] * 3) == "stock"


@pytest.mark.parametrize("name", ["scale_attn_by_inverse_layer_idx", "add_cross_attention"])
def test_what_gpt_bigcode_lacks_is_refused(name):
    with pytest.raises(NotHeldError, match=f"gpt_bigcode has no {name}, which this model uses"):
        config_for(config_of("gpt2", **{name: True}), [(5, 1)] * 3, "gpt_bigcode")


def test_architectures_that_cannot_be_reshaped_and_classes_without_counterpart():
    for form in FORMATS:
        with pytest.raises(NotHeldError, match="headwise does not know where olmo2 keeps its heads"):
            config_for(config_of("olmo2"), [(6, 2)] * 3, form)
    assert class_name("LlamaModel", "mistral") == "MistralModel"
    assert class_name("LlamaForCausalLM", "headwise") == "LlamaForCausalLM"
    with pytest.raises(NotHeldError, match="mistral has no counterpart of LlamaForQuestionAnswering"):
        class_name("LlamaForQuestionAnswering", "mistral")
