"""Facts of published models: fields of their config.json, and what one token costs, multiplied out by hand.

Each product reads: planes (keys and values) × layers × KV heads × width × bytes of bfloat16. Only the fields that
decide something are given; those left out are left out in the published file too, or don't matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["GOLDEN", "Golden"]


@dataclass(frozen=True)
class Golden:
    """One published model.

    Attributes:
        name: as its repository is called.
        fields: of its config.json.
        token: bytes of one token inside every window.
        growth: bytes of one more token beyond all windows; None: as ``token``.
        fixed: bytes of the states of fixed size, at two bytes an element.
        cross: bytes of one token of the encoder.
    """

    name: str
    fields: dict[str, Any]
    token: int
    growth: int | None = None
    fixed: int = 0
    cross: int = 0


def _llama(width: int, layers: int, heads: int, kv_heads: int | None = None, **more: Any) -> dict[str, Any]:
    fields = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    if kv_heads is not None:
        fields["num_key_value_heads"] = kv_heads
    return {"model_type": "llama", **fields, **more}


GOLDEN: tuple[Golden, ...] = (
    Golden("huggyllama/llama-7b", _llama(4096, 32, 32), 2 * 32 * 32 * 128 * 2),
    Golden("meta-llama/Llama-2-7b", _llama(4096, 32, 32, 32), 2 * 32 * 32 * 128 * 2),
    Golden("meta-llama/Llama-2-13b", _llama(5120, 40, 40, 40), 2 * 40 * 40 * 128 * 2),
    Golden("meta-llama/Llama-2-70b", _llama(8192, 80, 64, 8), 2 * 80 * 8 * 128 * 2),
    Golden("meta-llama/Meta-Llama-3-8B", _llama(4096, 32, 32, 8), 2 * 32 * 8 * 128 * 2),
    Golden("meta-llama/Meta-Llama-3-70B", _llama(8192, 80, 64, 8), 2 * 80 * 8 * 128 * 2),
    Golden("meta-llama/Llama-3.2-1B", _llama(2048, 16, 32, 8, head_dim=64), 2 * 16 * 8 * 64 * 2),
    Golden("meta-llama/Llama-3.2-3B", _llama(3072, 28, 24, 8, head_dim=128), 2 * 28 * 8 * 128 * 2),
    Golden("HuggingFaceTB/SmolLM2-135M", _llama(576, 30, 9, 3), 2 * 30 * 3 * 64 * 2),
    Golden("01-ai/Yi-34B", _llama(7168, 60, 56, 8), 2 * 60 * 8 * 128 * 2),
    Golden(
        "mistralai/Mistral-7B-v0.1",
        _llama(4096, 32, 32, 8, model_type="mistral", sliding_window=4096),
        2 * 32 * 8 * 128 * 2,
        growth=0,
    ),
    Golden(
        "mistralai/Mistral-7B-v0.3",
        _llama(4096, 32, 32, 8, model_type="mistral", sliding_window=None),
        2 * 32 * 8 * 128 * 2,
    ),
    # 5120 / 32 would be 160.
    Golden(
        "mistralai/Mistral-Nemo-Base-2407",
        _llama(5120, 40, 32, 8, model_type="mistral", head_dim=128, sliding_window=None),
        2 * 40 * 8 * 128 * 2,
    ),
    Golden(
        "mistralai/Mixtral-8x22B-v0.1",
        _llama(6144, 56, 48, 8, model_type="mixtral", sliding_window=None),
        2 * 56 * 8 * 128 * 2,
    ),
    # The window in the config is switched off.
    Golden(
        "Qwen/Qwen2-7B",
        _llama(
            3584, 28, 28, 4, model_type="qwen2", sliding_window=131072, use_sliding_window=False, max_window_layers=28
        ),
        2 * 28 * 4 * 128 * 2,
    ),
    Golden(
        "Qwen/Qwen2.5-0.5B",
        _llama(
            896, 24, 14, 2, model_type="qwen2", sliding_window=32768, use_sliding_window=False, max_window_layers=24
        ),
        2 * 24 * 2 * 64 * 2,
    ),
    Golden(
        "Qwen/Qwen2.5-72B",
        _llama(
            8192, 80, 64, 8, model_type="qwen2", sliding_window=131072, use_sliding_window=False, max_window_layers=80
        ),
        2 * 80 * 8 * 128 * 2,
    ),
    # Heads of 128 although 1024 / 16 is 64.
    Golden("Qwen/Qwen3-0.6B", _llama(1024, 28, 16, 8, model_type="qwen3", head_dim=128), 2 * 28 * 8 * 128 * 2),
    Golden("Qwen/Qwen3-32B", _llama(5120, 64, 64, 8, model_type="qwen3", head_dim=128), 2 * 64 * 8 * 128 * 2),
    Golden(
        "Qwen/Qwen3-235B-A22B",
        _llama(4096, 94, 64, 4, model_type="qwen3_moe", head_dim=128, use_sliding_window=False),
        2 * 94 * 4 * 128 * 2,
    ),
    # Every fourth of 48 layers attends; the others keep 3 columns of (2 × 16 + 32) × 128 and 32 matrices of 128 × 128.
    Golden(
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        _llama(
            2048,
            48,
            16,
            2,
            model_type="qwen3_next",
            head_dim=256,
            full_attention_interval=4,
            linear_num_key_heads=16,
            linear_num_value_heads=32,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            linear_conv_kernel_dim=4,
        ),
        2 * 12 * 2 * 256 * 2,
        fixed=36 * (3 * 64 * 128 + 32 * 128 * 128) * 2,
    ),
    Golden("google/gemma-2b", _llama(2048, 18, 8, 1, model_type="gemma", head_dim=256), 2 * 18 * 1 * 256 * 2),
    Golden("google/gemma-7b", _llama(3072, 28, 16, 16, model_type="gemma", head_dim=256), 2 * 28 * 16 * 256 * 2),
    Golden(
        "google/gemma-2-9b",
        _llama(3584, 42, 16, 8, model_type="gemma2", head_dim=256, sliding_window=4096),
        2 * 42 * 8 * 256 * 2,
        growth=2 * 21 * 8 * 256 * 2,
    ),
    Golden(
        "google/gemma-2-27b",
        _llama(4608, 46, 32, 16, model_type="gemma2", head_dim=128, sliding_window=4096),
        2 * 46 * 16 * 128 * 2,
        growth=2 * 23 * 16 * 128 * 2,
    ),
    Golden(
        "google/gemma-3-1b-pt",
        _llama(1152, 26, 4, 1, model_type="gemma3_text", head_dim=256, sliding_window=512, sliding_window_pattern=6),
        2 * 26 * 1 * 256 * 2,
        growth=2 * 4 * 1 * 256 * 2,
    ),
    # Its text_config names neither heads, KV heads nor their width: 8, 4 and 256 of the class.
    Golden(
        "google/gemma-3-4b-pt",
        {
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "sliding_window": 1024,
            },
        },
        2 * 34 * 4 * 256 * 2,
        growth=2 * 5 * 4 * 256 * 2,
    ),
    Golden(
        "google/gemma-3-27b-pt",
        {
            "model_type": "gemma3",
            "text_config": {
                "head_dim": 128,
                "hidden_size": 5376,
                "model_type": "gemma3_text",
                "num_attention_heads": 32,
                "num_hidden_layers": 62,
                "num_key_value_heads": 16,
                "sliding_window": 1024,
            },
        },
        2 * 62 * 16 * 128 * 2,
        growth=2 * 10 * 16 * 128 * 2,
    ),
    # 20 of 35 layers keep something, 4 of them everything.
    Golden(
        "google/gemma-3n-E4B-it",
        {
            "model_type": "gemma3n",
            "text_config": {
                "head_dim": 256,
                "hidden_size": 2048,
                "model_type": "gemma3n_text",
                "num_attention_heads": 8,
                "num_hidden_layers": 35,
                "num_key_value_heads": 2,
                "num_kv_shared_layers": 15,
                "sliding_window": 512,
            },
        },
        2 * 20 * 2 * 256 * 2,
        growth=2 * 4 * 2 * 256 * 2,
    ),
    Golden("microsoft/phi-1_5", _llama(2048, 24, 32, model_type="phi"), 2 * 24 * 32 * 64 * 2),
    Golden("microsoft/phi-2", _llama(2560, 32, 32, 32, model_type="phi"), 2 * 32 * 32 * 80 * 2),
    Golden(
        "microsoft/Phi-3-mini-4k-instruct",
        _llama(3072, 32, 32, 32, model_type="phi3", sliding_window=2047),
        2 * 32 * 32 * 96 * 2,
        growth=0,
    ),
    Golden(
        "microsoft/phi-4",
        _llama(5120, 40, 40, 10, model_type="phi3", sliding_window=None),
        2 * 40 * 10 * 128 * 2,
    ),
    Golden(
        "openai-community/gpt2",
        {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024},
        2 * 12 * 12 * 64 * 2,
    ),
    Golden(
        "openai-community/gpt2-xl",
        {"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024},
        2 * 48 * 25 * 64 * 2,
    ),
    Golden("EleutherAI/gpt-neox-20b", _llama(6144, 44, 64, model_type="gpt_neox"), 2 * 44 * 64 * 96 * 2),
    Golden("EleutherAI/pythia-12b", _llama(5120, 36, 40, model_type="gpt_neox"), 2 * 36 * 40 * 128 * 2),
    Golden(
        "EleutherAI/gpt-j-6b",
        {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_positions": 2048},
        2 * 28 * 16 * 256 * 2,
    ),
    Golden("facebook/opt-125m", _llama(768, 12, 12, model_type="opt"), 2 * 12 * 12 * 64 * 2),
    Golden("facebook/opt-66b", _llama(9216, 64, 72, model_type="opt"), 2 * 64 * 72 * 128 * 2),
    Golden(
        "bigscience/bloom",
        {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112},
        2 * 70 * 112 * 128 * 2,
    ),
    Golden(
        "mosaicml/mpt-7b",
        {
            "model_type": "mpt",
            "d_model": 4096,
            "n_heads": 32,
            "n_layers": 32,
            "max_seq_len": 2048,
            "attn_config": {"attn_type": "multihead_attention", "alibi": True},
        },
        2 * 32 * 32 * 128 * 2,
    ),
    Golden(
        "databricks/dbrx-base",
        {
            "model_type": "dbrx",
            "d_model": 6144,
            "n_heads": 48,
            "n_layers": 40,
            "max_seq_len": 32768,
            "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
        },
        2 * 40 * 8 * 128 * 2,
    ),
    Golden(
        "tiiuae/falcon-7b",
        _llama(4544, 32, 71, model_type="falcon", multi_query=True, new_decoder_architecture=False, bias=False),
        2 * 32 * 1 * 64 * 2,
    ),
    Golden(
        "tiiuae/falcon-40b",
        _llama(8192, 60, 128, model_type="falcon", num_kv_heads=8, new_decoder_architecture=True, bias=False),
        2 * 60 * 8 * 64 * 2,
    ),
    Golden(
        "tiiuae/falcon-40b, as first published",
        {"model_type": "RefinedWeb", "hidden_size": 8192, "n_layer": 60, "n_head": 128, "n_head_kv": 8},
        2 * 60 * 8 * 64 * 2,
    ),
    Golden(
        "bigcode/starcoder",
        {"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40, "multi_query": True},
        2 * 40 * 1 * 128 * 2,
    ),
    Golden(
        "bigcode/starcoder2-15b",
        _llama(6144, 40, 48, 4, model_type="starcoder2", sliding_window=4096, use_bias=True),
        2 * 40 * 4 * 128 * 2,
        growth=0,
    ),
    Golden(
        "stabilityai/stablelm-3b-4e1t",
        _llama(2560, 32, 32, 32, model_type="stablelm", use_qkv_bias=False),
        2 * 32 * 32 * 80 * 2,
    ),
    Golden("allenai/OLMo-7B-hf", _llama(4096, 32, 32, 32, model_type="olmo"), 2 * 32 * 32 * 128 * 2),
    Golden("allenai/OLMo-2-0325-32B", _llama(5120, 64, 40, 8, model_type="olmo2"), 2 * 64 * 8 * 128 * 2),
    Golden(
        "allenai/Olmo-3-1025-7B",
        _llama(4096, 32, 32, 32, model_type="olmo3", sliding_window=4096),
        2 * 32 * 32 * 128 * 2,
        growth=2 * 8 * 32 * 128 * 2,
    ),
    Golden("ibm-granite/granite-3.0-8b-base", _llama(4096, 40, 32, 8, model_type="granite"), 2 * 40 * 8 * 128 * 2),
    Golden("CohereForAI/c4ai-command-r-v01", _llama(8192, 40, 64, 64, model_type="cohere"), 2 * 40 * 64 * 128 * 2),
    Golden("CohereForAI/c4ai-command-r-plus", _llama(12288, 64, 96, 8, model_type="cohere"), 2 * 64 * 8 * 128 * 2),
    Golden(
        "CohereForAI/c4ai-command-r7b-12-2024",
        _llama(4096, 32, 32, 8, model_type="cohere2", sliding_window=4096, sliding_window_pattern=4),
        2 * 32 * 8 * 128 * 2,
        growth=2 * 8 * 8 * 128 * 2,
    ),
    Golden(
        "openai/gpt-oss-120b",
        _llama(2880, 36, 64, 8, model_type="gpt_oss", head_dim=64, sliding_window=128, attention_bias=True),
        2 * 36 * 8 * 64 * 2,
        growth=2 * 18 * 8 * 64 * 2,
    ),
    Golden(
        "deepseek-ai/DeepSeek-V2-Lite",
        _llama(
            2048,
            27,
            16,
            16,
            model_type="deepseek_v2",
            kv_lora_rank=512,
            q_lora_rank=None,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
        ),
        27 * (512 + 64) * 2,
    ),
    Golden(
        "deepseek-ai/DeepSeek-V2",
        _llama(
            5120,
            60,
            128,
            128,
            model_type="deepseek_v2",
            kv_lora_rank=512,
            q_lora_rank=1536,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
        ),
        60 * (512 + 64) * 2,
    ),
    # The indexer's key of 128 comes on top.
    Golden(
        "deepseek-ai/DeepSeek-V3.2-Exp",
        _llama(
            7168,
            61,
            128,
            128,
            model_type="deepseek_v32",
            kv_lora_rank=512,
            q_lora_rank=1536,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            index_head_dim=128,
            index_n_heads=64,
            index_topk=2048,
        ),
        61 * (512 + 64 + 128) * 2,
    ),
    Golden(
        "moonshotai/Kimi-K2-Instruct",
        _llama(
            7168,
            61,
            64,
            64,
            model_type="kimi_k2",
            kv_lora_rank=512,
            q_lora_rank=1536,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
        ),
        61 * (512 + 64) * 2,
    ),
    # 7 of 27 layers are latent attention, counted from 1 in the config; the others keep 3 columns of 3 × 32 × 128 and
    # 32 matrices of 128 × 128.
    Golden(
        "moonshotai/Kimi-Linear-48B-A3B-Instruct",
        _llama(
            2304,
            27,
            32,
            32,
            model_type="kimi_linear",
            kv_lora_rank=512,
            q_lora_rank=None,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            linear_attn_config={
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
                "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
                "head_dim": 128,
                "num_heads": 32,
                "short_conv_kernel_size": 4,
            },
        ),
        7 * (512 + 64) * 2,
        fixed=20 * (3 * 3 * 32 * 128 + 32 * 128 * 128) * 2,
    ),
    # Without v_head_dim, as published.
    Golden(
        "openbmb/MiniCPM3-4B",
        _llama(
            2560,
            62,
            40,
            40,
            model_type="minicpm3",
            kv_lora_rank=256,
            q_lora_rank=768,
            qk_nope_head_dim=64,
            qk_rope_head_dim=32,
        ),
        62 * (256 + 32) * 2,
    ),
    Golden("THUDM/GLM-4-9B-0414", _llama(4096, 40, 32, 2, model_type="glm4", head_dim=128), 2 * 40 * 2 * 128 * 2),
    Golden(
        "THUDM/glm-4-9b",
        {
            "model_type": "chatglm",
            "hidden_size": 4096,
            "num_layers": 40,
            "num_attention_heads": 32,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "add_qkv_bias": True,
            "add_bias_linear": False,
            "seq_length": 131072,
        },
        2 * 40 * 2 * 128 * 2,
    ),
    Golden("zai-org/GLM-4.5-Air", _llama(4096, 46, 96, 8, model_type="glm4_moe", head_dim=128), 2 * 46 * 8 * 128 * 2),
    # Every eighth layer is softmax attention; the others keep a matrix of 128 × 128 for each of 64 heads.
    Golden(
        "MiniMaxAI/MiniMax-Text-01",
        _llama(
            6144,
            80,
            64,
            8,
            model_type="minimax_text_01",
            head_dim=128,
            attn_type_list=[0, 0, 0, 0, 0, 0, 0, 1] * 10,
        ),
        2 * 10 * 8 * 128 * 2,
        fixed=70 * 64 * 128 * 128 * 2,
    ),
    Golden(
        "MiniMaxAI/MiniMax-M2", _llama(3072, 62, 48, 8, model_type="minimax_m2", head_dim=128), 2 * 62 * 8 * 128 * 2
    ),
    # 9 full layers with 4 KV heads, 39 sliding ones with 8; keys of 192, values of 128.
    Golden(
        "XiaomiMiMo/MiMo-V2-Flash",
        _llama(
            4096,
            48,
            64,
            4,
            model_type="mimo_v2_flash",
            head_dim=192,
            v_head_dim=128,
            hybrid_layer_pattern=[0] + [1] * 4 + ([0] + [1] * 5) * 7 + [0],
            swa_num_key_value_heads=8,
            sliding_window=128,
            attention_chunk_size=128,
        ),
        (9 * 4 + 39 * 8) * (192 + 128) * 2,
        growth=9 * 4 * (192 + 128) * 2,
    ),
    Golden(
        "ai21labs/Jamba-v0.1",
        _llama(
            4096,
            32,
            32,
            8,
            model_type="jamba",
            attn_layer_period=8,
            attn_layer_offset=4,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
        ),
        2 * 4 * 8 * 128 * 2,
        fixed=28 * (3 * 8192 + 8192 * 16) * 2,
    ),
    Golden(
        "state-spaces/mamba-130m-hf",
        {"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "state_size": 16, "conv_kernel": 4},
        0,
        fixed=24 * (3 * 1536 + 1536 * 16) * 2,
    ),
    Golden(
        "mistralai/Mamba-Codestral-7B-v0.1",
        {
            "model_type": "mamba2",
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "num_heads": 128,
            "head_dim": 64,
            "n_groups": 8,
            "state_size": 128,
            "conv_kernel": 4,
            "expand": 2,
        },
        0,
        fixed=64 * (3 * (8192 + 2 * 8 * 128) + 128 * 64 * 128) * 2,
    ),
    # Attention over twice the width in 9 of 54 layers: heads of 2 × 2560 / 32.
    Golden(
        "Zyphra/Zamba2-2.7B",
        _llama(
            2560,
            54,
            32,
            32,
            model_type="zamba2",
            hybrid_layer_ids=[6, 12, 18, 24, 30, 36, 42, 47, 51],
            n_mamba_heads=80,
            mamba_d_state=64,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_ngroups=1,
            num_mem_blocks=2,
        ),
        2 * 9 * 32 * 160 * 2,
        fixed=54 * (3 * (5120 + 2 * 64) + 5120 * 64) * 2,
    ),
    Golden(
        "tiiuae/Falcon-H1-0.5B-Base",
        _llama(
            1024,
            36,
            8,
            2,
            model_type="falcon_h1",
            head_dim=64,
            mamba_d_ssm=1536,
            mamba_n_heads=24,
            mamba_d_head=64,
            mamba_n_groups=1,
            mamba_d_state=128,
            mamba_d_conv=4,
        ),
        2 * 36 * 2 * 64 * 2,
        fixed=36 * (3 * (1536 + 2 * 128) + 1536 * 128) * 2,
    ),
    Golden(
        "LiquidAI/LFM2-1.2B",
        _llama(2048, 16, 32, 8, model_type="lfm2", full_attn_idxs=[2, 5, 8, 10, 12, 14], conv_L_cache=3),
        2 * 6 * 8 * 64 * 2,
        fixed=10 * 2 * 2048 * 2,
    ),
    Golden("google-bert/bert-base-uncased", _llama(768, 12, 12, model_type="bert"), 0),
    Golden("FacebookAI/roberta-large", _llama(1024, 24, 16, model_type="roberta"), 0),
    Golden(
        "google-t5/t5-small",
        {"model_type": "t5", "d_model": 512, "d_kv": 64, "num_heads": 8, "num_layers": 6},
        2 * 6 * 8 * 64 * 2,
        cross=2 * 6 * 8 * 64 * 2,
    ),
    # 128 heads of 128 over a width of 1024.
    Golden(
        "google-t5/t5-11b",
        {"model_type": "t5", "d_model": 1024, "d_kv": 128, "num_heads": 128, "num_layers": 24},
        2 * 24 * 128 * 128 * 2,
        cross=2 * 24 * 128 * 128 * 2,
    ),
    Golden(
        "facebook/bart-large",
        {
            "model_type": "bart",
            "d_model": 1024,
            "encoder_layers": 12,
            "encoder_attention_heads": 16,
            "decoder_layers": 12,
            "decoder_attention_heads": 16,
        },
        2 * 12 * 16 * 64 * 2,
        cross=2 * 12 * 16 * 64 * 2,
    ),
    Golden(
        "openai/whisper-large-v3",
        {
            "model_type": "whisper",
            "d_model": 1280,
            "encoder_layers": 32,
            "encoder_attention_heads": 20,
            "decoder_layers": 32,
            "decoder_attention_heads": 20,
            "max_source_positions": 1500,
            "max_target_positions": 448,
        },
        2 * 32 * 20 * 64 * 2,
        cross=2 * 32 * 20 * 64 * 2,
    ),
    # 8 of 40 layers look at the image only.
    Golden(
        "meta-llama/Llama-3.2-11B-Vision",
        {
            "model_type": "mllama",
            "text_config": {
                "model_type": "mllama_text_model",
                "hidden_size": 4096,
                "num_hidden_layers": 40,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
            },
            "vision_config": {"image_size": 560, "patch_size": 14, "max_num_tiles": 4},
        },
        2 * 32 * 8 * 128 * 2,
        cross=2 * 8 * 8 * 128 * 2,
    ),
    # Its text_config names no size at all: those of LlamaConfig.
    Golden(
        "llava-hf/llava-1.5-7b-hf",
        {
            "model_type": "llava",
            "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
        },
        2 * 32 * 32 * 128 * 2,
    ),
    # Flat, with a vision_config beside.
    Golden(
        "Qwen/Qwen2-VL-7B-Instruct",
        _llama(
            3584,
            28,
            28,
            4,
            model_type="qwen2_vl",
            use_sliding_window=False,
            sliding_window=32768,
            max_window_layers=28,
            vision_config={"depth": 32, "embed_dim": 1280, "num_heads": 16},
        ),
        2 * 28 * 4 * 128 * 2,
    ),
    # The pattern is letters; the last of four sees everything.
    Golden(
        "LGAI-EXAONE/EXAONE-4.0-32B",
        _llama(5120, 64, 40, 8, model_type="exaone4", sliding_window=4096, sliding_window_pattern="LLLG"),
        2 * 64 * 8 * 128 * 2,
        growth=2 * 16 * 8 * 128 * 2,
    ),
    Golden(
        "ByteDance-Seed/Seed-OSS-36B-Base",
        _llama(5120, 64, 80, 8, model_type="seed_oss", head_dim=128),
        2 * 64 * 8 * 128 * 2,
    ),
    Golden("HuggingFaceTB/SmolLM3-3B", _llama(2048, 36, 16, 4, model_type="smollm3"), 2 * 36 * 4 * 128 * 2),
    Golden("swiss-ai/Apertus-8B-2509", _llama(4096, 32, 32, 8, model_type="apertus"), 2 * 32 * 8 * 128 * 2),
    Golden(
        "baidu/ERNIE-4.5-0.3B-PT", _llama(1024, 18, 16, 2, model_type="ernie4_5", head_dim=128), 2 * 18 * 2 * 128 * 2
    ),
    Golden(
        "internlm/internlm2_5-7b", _llama(4096, 32, 32, 8, model_type="internlm2", bias=False), 2 * 32 * 8 * 128 * 2
    ),
    Golden("baichuan-inc/Baichuan2-7B-Base", _llama(4096, 32, 32, model_type="baichuan"), 2 * 32 * 32 * 128 * 2),
    Golden("Qwen/Qwen-7B", _llama(4096, 32, 32, model_type="qwen", kv_channels=128), 2 * 32 * 32 * 128 * 2),
    # 3, 4 and 5 KV heads of 64: 5 × 3 + 7 × 4 + 4 × 5 of them.
    Golden(
        "apple/OpenELM-270M",
        {
            "model_type": "openelm",
            "num_transformer_layers": 16,
            "model_dim": 1280,
            "head_dim": 64,
            "num_query_heads": [12] * 5 + [16] * 7 + [20] * 4,
            "num_kv_heads": [3] * 5 + [4] * 7 + [5] * 4,
            "max_context_length": 2048,
        },
        2 * (5 * 3 + 7 * 4 + 4 * 5) * 64 * 2,
    ),
    # Every second layer reads the keys and values of the one before; 6400 / 80 isn't the width of a head.
    Golden(
        "tencent/Tencent-Hunyuan-Large",
        _llama(6400, 64, 80, 8, model_type="hunyuan", attention_head_dim=128, use_cla=True, cla_share_factor=2),
        2 * 32 * 8 * 128 * 2,
    ),
    Golden("deepseek-ai/deepseek-moe-16b-base", _llama(2048, 28, 16, 16, model_type="deepseek"), 2 * 28 * 16 * 128 * 2),
)
