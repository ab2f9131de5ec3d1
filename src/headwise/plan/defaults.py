"""What a config that omits a field means: the defaults of its class in transformers, declared.

A test holds every entry to the installed class, so that the table can't rot. Only fields that decide states or
projections are listed; those whose default is None need no entry. A value that stands in a config as null is null.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ARGUMENTS", "CLASS_DEFAULTS", "ESSENTIAL", "REMOTE_DEFAULTS", "TRANSFORMERS"]

# Where the table was read.
TRANSFORMERS = "transformers 5.24.0"

_Defaults = Mapping[str, "int | str | bool"]

# Sizes that make up a model. A saved config names them whatever their value, so one without them is broken, and the
# class's default would describe another model. Only a nested config leaves them out where they equal the default.
ESSENTIAL = frozenset(
    """
    hidden_size num_hidden_layers num_attention_heads n_embd n_layer n_head d_model n_layers n_heads num_layers
    num_heads attention_heads dim d_kv encoder_layers decoder_layers encoder_attention_heads decoder_attention_heads
    kv_lora_rank qk_rope_head_dim qk_nope_head_dim index_head_dim index_n_heads state_size ssm_state_size
    mamba_d_state mamba_num_heads mamba_n_heads n_mamba_heads mamba_head_dim attn_layer_period attn_layer_offset
    linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim max_source_positions
    """.split()
)

# One entry: model_type and class, then its fields.
_TABLE = """
afmoe AfmoeConfig
  hidden_size=2048 num_hidden_layers=32 num_attention_heads=16 head_dim=128 max_position_embeddings=16384
  global_attn_every_n_layers=4 sliding_window=1024 attention_bias=false
albert AlbertConfig
  hidden_size=4096 num_hidden_layers=12 num_hidden_groups=1 num_attention_heads=64 max_position_embeddings=512
apertus ApertusConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=65536 attention_bias=false
arcee ArceeConfig
  hidden_size=2560 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=4096 attention_bias=false
aria_text AriaTextConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=2048 attention_bias=false
axk1 AXK1Config
  hidden_size=7168 num_hidden_layers=61 num_attention_heads=64 num_key_value_heads=64 kv_lora_rank=512 q_lora_rank=1536
  qk_rope_head_dim=64 v_head_dim=128 qk_nope_head_dim=128 max_position_embeddings=32768 attention_bias=false
bamba BambaConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=8 max_position_embeddings=262144
  mamba_n_heads=128 mamba_d_head=auto mamba_n_groups=1 mamba_d_state=256 mamba_d_conv=4 mamba_expand=2
  attention_bias=false
bart BartConfig
  max_position_embeddings=1024 encoder_layers=12 encoder_attention_heads=16 decoder_layers=12 decoder_attention_heads=16
  d_model=1024 is_decoder=false
bert BertConfig
  hidden_size=768 num_hidden_layers=12 num_attention_heads=12 max_position_embeddings=512 is_decoder=false
biogpt BioGptConfig
  hidden_size=1024 num_hidden_layers=24 num_attention_heads=16 max_position_embeddings=1024
bitnet BitNetConfig
  hidden_size=2560 num_hidden_layers=30 num_attention_heads=20 num_key_value_heads=5 max_position_embeddings=2048
  attention_bias=false
blenderbot BlenderbotConfig
  max_position_embeddings=128 encoder_layers=2 encoder_attention_heads=32 decoder_layers=24 decoder_attention_heads=32
  d_model=2560 is_decoder=false
blenderbot-small BlenderbotSmallConfig
  max_position_embeddings=512 encoder_layers=8 encoder_attention_heads=16 decoder_layers=8 decoder_attention_heads=16
  d_model=512 is_decoder=false
bloom BloomConfig
  hidden_size=64 n_layer=2 n_head=8
camembert CamembertConfig
  hidden_size=768 num_hidden_layers=12 num_attention_heads=12 max_position_embeddings=512 is_decoder=false
codegen CodeGenConfig
  n_positions=2048 n_embd=4096 n_layer=28 n_head=16
cohere CohereConfig
  hidden_size=8192 num_hidden_layers=40 num_attention_heads=64 max_position_embeddings=8192 attention_bias=false
cohere2 Cohere2Config
  hidden_size=8192 num_hidden_layers=40 num_attention_heads=64 max_position_embeddings=8192 attention_bias=false
  sliding_window=4096
cohere2_moe Cohere2MoeConfig
  hidden_size=8192 num_hidden_layers=40 num_attention_heads=64 head_dim=128 max_position_embeddings=8192
  attention_bias=false sliding_window=4096 prefix_dense_sliding_window_pattern=1 sliding_window_pattern=4
cwm CwmConfig
  hidden_size=6144 num_hidden_layers=64 num_attention_heads=48 num_key_value_heads=8 max_position_embeddings=131072
  head_dim=128 sliding_window=8192
dbrx DbrxConfig
  d_model=2048 n_heads=16 n_layers=24 max_seq_len=2048
deepseek_v2 DeepseekV2Config
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=2048 attention_bias=false
  first_k_dense_replace=0 kv_lora_rank=512 q_lora_rank=1536 qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128
deepseek_v3 DeepseekV3Config
  hidden_size=7168 num_hidden_layers=61 num_attention_heads=128 num_key_value_heads=128 kv_lora_rank=512
  q_lora_rank=1536 qk_rope_head_dim=64 v_head_dim=128 qk_nope_head_dim=128 first_k_dense_replace=3
  max_position_embeddings=4096 attention_bias=false
deepseek_v32 DeepseekV32Config
  hidden_size=7168 num_hidden_layers=61 num_attention_heads=128 num_key_value_heads=128 kv_lora_rank=512
  q_lora_rank=1536 qk_rope_head_dim=64 v_head_dim=128 qk_nope_head_dim=128 max_position_embeddings=163840
  attention_bias=false index_topk=2048 index_head_dim=128 index_n_heads=64 head_dim=64 first_k_dense_replace=3
distilbert DistilBertConfig
  max_position_embeddings=512 n_layers=6 n_heads=12 dim=768
dots1 Dots1Config
  hidden_size=4608 num_hidden_layers=62 num_attention_heads=32 num_key_value_heads=32 first_k_dense_replace=0
  max_position_embeddings=2048 attention_bias=false sliding_window=4096 max_window_layers=62
electra ElectraConfig
  hidden_size=256 num_hidden_layers=12 num_attention_heads=4 max_position_embeddings=512 is_decoder=false
ernie4_5 Ernie4_5Config
  hidden_size=1024 num_hidden_layers=18 num_attention_heads=16 num_key_value_heads=2 max_position_embeddings=131072
  use_bias=false head_dim=128
ernie4_5_moe Ernie4_5_MoeConfig
  hidden_size=2560 num_hidden_layers=28 num_attention_heads=20 num_key_value_heads=4 max_position_embeddings=131072
  use_bias=false
exaone ExaoneConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=8 max_position_embeddings=4096
  attention_bias=false
exaone4 Exaone4Config
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=32 max_position_embeddings=2048
  sliding_window=4096 sliding_window_pattern=4
exaone_moe ExaoneMoeConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=32 max_position_embeddings=2048
  sliding_window=4096 sliding_window_pattern=4 first_k_dense_replace=1
falcon FalconConfig
  hidden_size=4544 num_hidden_layers=32 num_attention_heads=71 alibi=false new_decoder_architecture=false
  multi_query=true bias=false max_position_embeddings=2048
falcon_h1 FalconH1Config
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=8 max_position_embeddings=8192
  mamba_d_ssm=1024 mamba_n_heads=128 mamba_d_head=auto mamba_n_groups=1 mamba_d_state=256 mamba_d_conv=4 mamba_expand=2
  attention_bias=false
falcon_mamba FalconMambaConfig
  hidden_size=768 state_size=16 num_hidden_layers=32 expand=2 conv_kernel=4 use_bias=false
flex_olmo FlexOlmoConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=4096 attention_bias=false
gemma GemmaConfig
  hidden_size=3072 num_hidden_layers=28 num_attention_heads=16 num_key_value_heads=16 head_dim=256
  max_position_embeddings=8192 attention_bias=false
gemma2 Gemma2Config
  hidden_size=2304 num_hidden_layers=26 num_attention_heads=8 num_key_value_heads=4 head_dim=256
  max_position_embeddings=8192 attention_bias=false sliding_window=4096
gemma3_text Gemma3TextConfig
  hidden_size=2304 num_hidden_layers=26 num_attention_heads=8 num_key_value_heads=4 head_dim=256
  max_position_embeddings=131072 attention_bias=false sliding_window=4096 use_bidirectional_attention=false
gemma3n_text Gemma3nTextConfig
  hidden_size=2048 num_hidden_layers=35 num_attention_heads=8 num_key_value_heads=2 head_dim=256
  max_position_embeddings=32768 attention_bias=false sliding_window=512 num_kv_shared_layers=15
gemma4_text Gemma4TextConfig
  hidden_size=2304 num_hidden_layers=30 num_attention_heads=8 num_key_value_heads=4 head_dim=256
  max_position_embeddings=131072 attention_bias=false sliding_window=512 attention_k_eq_v=false num_kv_shared_layers=0
gemma4_unified_text Gemma4UnifiedTextConfig
  hidden_size=2304 num_hidden_layers=30 num_attention_heads=8 num_key_value_heads=4 head_dim=256
  max_position_embeddings=262144 attention_bias=false sliding_window=1024 use_bidirectional_attention=vision
  attention_k_eq_v=false num_kv_shared_layers=0
glm GlmConfig
  hidden_size=4096 num_hidden_layers=40 num_attention_heads=32 num_key_value_heads=2 head_dim=128
  max_position_embeddings=131072 attention_bias=true
glm4 Glm4Config
  hidden_size=4096 num_hidden_layers=40 num_attention_heads=32 num_key_value_heads=2 head_dim=128
  max_position_embeddings=131072 attention_bias=true
glm4_moe Glm4MoeConfig
  hidden_size=4096 num_hidden_layers=46 num_attention_heads=96 num_key_value_heads=8 max_position_embeddings=131072
  attention_bias=false first_k_dense_replace=1
glm4_moe_lite Glm4MoeLiteConfig
  hidden_size=2048 num_hidden_layers=47 num_attention_heads=20 num_key_value_heads=20 kv_lora_rank=512 q_lora_rank=768
  qk_rope_head_dim=64 v_head_dim=256 qk_nope_head_dim=192 max_position_embeddings=202752 attention_bias=false
glm4v_moe_text Glm4vMoeTextConfig
  hidden_size=4096 num_hidden_layers=46 num_attention_heads=96 num_key_value_heads=8 max_position_embeddings=65536
  attention_bias=true first_k_dense_replace=1
glm4v_text Glm4vTextConfig
  hidden_size=4096 num_hidden_layers=40 num_attention_heads=32 num_key_value_heads=2 max_position_embeddings=32768
glm_moe_dsa GlmMoeDsaConfig
  hidden_size=6144 num_hidden_layers=78 num_attention_heads=64 num_key_value_heads=64 kv_lora_rank=512 q_lora_rank=2048
  qk_rope_head_dim=64 v_head_dim=256 qk_nope_head_dim=192 max_position_embeddings=202752 attention_bias=false
  index_topk=2048 index_head_dim=128 index_n_heads=32 head_dim=64 first_k_dense_replace=3
gpt2 GPT2Config
  n_positions=1024 n_embd=768 n_layer=12 n_head=12
gpt_bigcode GPTBigCodeConfig
  n_positions=1024 n_embd=768 n_layer=12 n_head=12 multi_query=true
gpt_neo GPTNeoConfig
  max_position_embeddings=2048 hidden_size=2048 num_layers=24 num_heads=16 window_size=256
gpt_neox GPTNeoXConfig
  hidden_size=6144 num_hidden_layers=44 num_attention_heads=64 max_position_embeddings=2048 attention_bias=true
  is_decoder=false
gpt_oss GptOssConfig
  num_hidden_layers=36 hidden_size=2880 head_dim=64 num_attention_heads=64 num_key_value_heads=8 sliding_window=128
  max_position_embeddings=131072 attention_bias=true
gptj GPTJConfig
  n_positions=2048 n_embd=4096 n_layer=28 n_head=16
granite GraniteConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=2048 attention_bias=false
granite_swa GraniteSWAConfig
  hidden_size=2560 num_hidden_layers=24 num_attention_heads=20 num_key_value_heads=4 max_position_embeddings=8192
  attention_bias=false sliding_window=128
granitemoe GraniteMoeConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=2048 attention_bias=false
granitemoe_swa GraniteMoeSWAConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=2048 attention_bias=false
  sliding_window=128
granitemoehybrid GraniteMoeHybridConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=2048 attention_bias=false
  mamba_n_heads=128 mamba_n_groups=1 mamba_d_state=256 mamba_d_head=auto mamba_d_conv=4 mamba_expand=2
granitemoeshared GraniteMoeSharedConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=2048 attention_bias=false
helium HeliumConfig
  hidden_size=2560 num_hidden_layers=24 num_attention_heads=20 num_key_value_heads=20 head_dim=128
  max_position_embeddings=4096 attention_bias=false
hunyuan_v1_dense HunYuanDenseV1Config
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=2048 attention_bias=false
hunyuan_v1_moe HunYuanMoEV1Config
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=2048 attention_bias=false
hy_v3 HYV3Config
  hidden_size=4096 num_hidden_layers=80 num_attention_heads=64 num_key_value_heads=8 head_dim=128
  max_position_embeddings=131072 attention_bias=false
hyperclovax HyperCLOVAXConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=2048 attention_bias=false
internlm3 InternLM3Config
  hidden_size=4096 num_hidden_layers=48 num_attention_heads=32 num_key_value_heads=2 max_position_embeddings=32768
  attention_bias=false head_dim=128
iquestcoder IQuestCoderConfig
  hidden_size=5120 num_hidden_layers=80 num_attention_heads=40 num_key_value_heads=8 max_position_embeddings=131072
  attention_bias=false head_dim=128
jais2 Jais2Config
  hidden_size=3328 num_hidden_layers=32 num_attention_heads=26 max_position_embeddings=8192 attention_bias=true
jamba JambaConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=8 max_position_embeddings=262144
  attn_layer_period=8 attn_layer_offset=4 mamba_d_state=16 mamba_d_conv=4 mamba_expand=2
kimi_linear KimiLinearConfig
  hidden_size=2304 num_hidden_layers=27 num_attention_heads=32 num_key_value_heads=32 kv_lora_rank=512
  qk_rope_head_dim=64 v_head_dim=128 qk_nope_head_dim=128 max_position_embeddings=1048576 attention_bias=false
  linear_head_dim=128 linear_num_heads=32 linear_conv_kernel_dim=4
lfm2 Lfm2Config
  hidden_size=2560 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=8 max_position_embeddings=128000
  conv_L_cache=3
lfm2_moe Lfm2MoeConfig
  hidden_size=2048 num_hidden_layers=32 max_position_embeddings=128000 num_attention_heads=32 num_key_value_heads=8
  conv_L_cache=3
llama LlamaConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=2048 attention_bias=false
llama4_text Llama4TextConfig
  hidden_size=5120 num_hidden_layers=48 num_attention_heads=40 num_key_value_heads=8 head_dim=128
  max_position_embeddings=131072 no_rope_layer_interval=4 attention_chunk_size=8192 attention_bias=false
longcat_flash LongcatFlashConfig
  hidden_size=6144 num_layers=28 num_attention_heads=64 max_position_embeddings=131072 attention_bias=false
  q_lora_rank=1536 kv_lora_rank=512 qk_nope_head_dim=128 qk_rope_head_dim=64 head_dim=64 v_head_dim=128
m2m_100 M2M100Config
  max_position_embeddings=1024 encoder_layers=12 encoder_attention_heads=16 decoder_layers=12 decoder_attention_heads=16
  d_model=1024
mamba MambaConfig
  hidden_size=768 state_size=16 num_hidden_layers=32 expand=2 conv_kernel=4 use_bias=false
mamba2 Mamba2Config
  num_heads=128 head_dim=64 hidden_size=4096 state_size=128 num_hidden_layers=64 expand=2 conv_kernel=4 n_groups=8
  use_bias=false
marian MarianConfig
  max_position_embeddings=1024 encoder_layers=12 encoder_attention_heads=16 decoder_layers=12 decoder_attention_heads=16
  d_model=1024 is_decoder=false
mbart MBartConfig
  max_position_embeddings=1024 encoder_layers=12 encoder_attention_heads=16 decoder_layers=12 decoder_attention_heads=16
  d_model=1024 is_decoder=false
mellum MellumConfig
  hidden_size=2304 num_hidden_layers=28 num_attention_heads=32 num_key_value_heads=4 max_position_embeddings=131072
  attention_bias=false sliding_window=1024 head_dim=128
mimo_v2_flash MiMoV2FlashConfig
  hidden_size=4096 num_hidden_layers=48 num_attention_heads=64 num_key_value_heads=4 max_position_embeddings=131072
  attention_bias=false head_dim=192 v_head_dim=128 sliding_window=129
minicpm3 MiniCPM3Config
  hidden_size=2560 num_hidden_layers=62 num_attention_heads=40 num_key_value_heads=40 max_position_embeddings=32768
  attention_bias=false kv_lora_rank=256 q_lora_rank=768 qk_nope_head_dim=64 qk_rope_head_dim=32
minimax MiniMaxConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=8 max_position_embeddings=131072
minimax_m2 MiniMaxM2Config
  hidden_size=3072 num_hidden_layers=62 num_attention_heads=48 num_key_value_heads=8 head_dim=128
  max_position_embeddings=196608
ministral MinistralConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=8 max_position_embeddings=131072
  sliding_window=4096
ministral3 Ministral3Config
  hidden_size=4096 num_hidden_layers=34 num_attention_heads=32 num_key_value_heads=8 head_dim=128
  max_position_embeddings=262144
mistral MistralConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=8 max_position_embeddings=131072
  sliding_window=4096
mistral4 Mistral4Config
  hidden_size=4096 num_hidden_layers=36 num_attention_heads=32 num_key_value_heads=32 kv_lora_rank=256 q_lora_rank=1024
  qk_rope_head_dim=64 v_head_dim=128 qk_nope_head_dim=64 first_k_dense_replace=0 max_position_embeddings=1048576
  attention_bias=false
mixtral MixtralConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=8 max_position_embeddings=131072
mllama_text_model MllamaTextConfig
  hidden_size=4096 num_hidden_layers=40 num_attention_heads=32 num_key_value_heads=8 max_position_embeddings=131072
modernbert ModernBertConfig
  hidden_size=768 num_hidden_layers=22 num_attention_heads=12 max_position_embeddings=8192 attention_bias=false
  local_attention=128
mpnet MPNetConfig
  hidden_size=768 num_hidden_layers=12 num_attention_heads=12 max_position_embeddings=512
mpt MptConfig
  d_model=2048 n_heads=16 n_layers=24 max_seq_len=2048
mt5 MT5Config
  d_model=512 d_kv=64 num_layers=8 num_heads=6 is_decoder=false
nanochat NanoChatConfig
  hidden_size=768 num_hidden_layers=12 num_attention_heads=6 max_position_embeddings=2048 attention_bias=false
nemotron NemotronConfig
  hidden_size=6144 num_hidden_layers=32 num_attention_heads=48 max_position_embeddings=4096 attention_bias=false
nemotron_h NemotronHConfig
  hidden_size=4096 num_attention_heads=32 num_key_value_heads=8 head_dim=128 max_position_embeddings=4096
  attention_bias=false ssm_state_size=128 mamba_num_heads=128 mamba_head_dim=64 n_groups=8 conv_kernel=4 expand=2
  mamba_ssm_cache_dtype=float32 use_bias=false
olmo OlmoConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=2048 attention_bias=false
olmo2 Olmo2Config
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=2048 attention_bias=false
olmo3 Olmo3Config
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=2048 attention_bias=false
  sliding_window=4096
olmo_hybrid OlmoHybridConfig
  hidden_size=3840 num_hidden_layers=32 num_attention_heads=30 max_position_embeddings=65536 attention_bias=false
  linear_conv_kernel_dim=4
olmoe OlmoeConfig
  hidden_size=2048 num_hidden_layers=16 num_attention_heads=16 max_position_embeddings=4096 attention_bias=false
opt OPTConfig
  hidden_size=768 num_hidden_layers=12 max_position_embeddings=2048 num_attention_heads=12 enable_bias=true
pegasus PegasusConfig
  max_position_embeddings=1024 encoder_layers=12 encoder_attention_heads=16 decoder_layers=12 decoder_attention_heads=16
  d_model=1024 is_decoder=false
persimmon PersimmonConfig
  hidden_size=4096 num_hidden_layers=36 num_attention_heads=64 max_position_embeddings=16384
phi PhiConfig
  hidden_size=2048 num_hidden_layers=24 num_attention_heads=32 max_position_embeddings=2048
phi3 Phi3Config
  hidden_size=3072 num_hidden_layers=32 num_attention_heads=32 max_position_embeddings=4096
phi4_multimodal Phi4MultimodalConfig
  hidden_size=3072 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=8 max_position_embeddings=131072
phimoe PhimoeConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=8 max_position_embeddings=131072
  attention_bias=false
qwen2 Qwen2Config
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=32 max_position_embeddings=32768
  use_sliding_window=false sliding_window=4096 max_window_layers=28
qwen2_5_omni_text Qwen2_5OmniTextConfig
  hidden_size=3584 num_hidden_layers=28 num_attention_heads=28 num_key_value_heads=4 max_position_embeddings=32768
  use_sliding_window=false sliding_window=32768 max_window_layers=28
qwen2_5_vl_text Qwen2_5_VLTextConfig
  hidden_size=8192 num_hidden_layers=80 num_attention_heads=64 num_key_value_heads=8 max_position_embeddings=32768
  use_sliding_window=false sliding_window=4096 max_window_layers=80
qwen2_moe Qwen2MoeConfig
  hidden_size=2048 num_hidden_layers=24 num_attention_heads=16 num_key_value_heads=16 max_position_embeddings=32768
  use_sliding_window=false sliding_window=4096 max_window_layers=28 qkv_bias=true
qwen2_vl_text Qwen2VLTextConfig
  hidden_size=8192 num_hidden_layers=80 num_attention_heads=64 num_key_value_heads=8 max_position_embeddings=32768
  use_sliding_window=false sliding_window=4096 max_window_layers=80
qwen3 Qwen3Config
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=32 head_dim=128
  max_position_embeddings=32768 attention_bias=false use_sliding_window=false sliding_window=4096 max_window_layers=28
qwen3_5_moe_text Qwen3_5MoeTextConfig
  hidden_size=2048 num_hidden_layers=40 num_attention_heads=16 num_key_value_heads=2 max_position_embeddings=32768
  attention_bias=false head_dim=256 linear_conv_kernel_dim=4 linear_key_head_dim=128 linear_value_head_dim=128
  linear_num_key_heads=16 linear_num_value_heads=32
qwen3_5_text Qwen3_5TextConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=16 num_key_value_heads=4 max_position_embeddings=32768
  attention_bias=false head_dim=256 linear_conv_kernel_dim=4 linear_key_head_dim=128 linear_value_head_dim=128
  linear_num_key_heads=16 linear_num_value_heads=32
qwen3_moe Qwen3MoeConfig
  hidden_size=2048 num_hidden_layers=24 num_attention_heads=32 num_key_value_heads=4 max_position_embeddings=32768
  attention_bias=false use_sliding_window=false sliding_window=4096
qwen3_next Qwen3NextConfig
  hidden_size=2048 num_hidden_layers=48 num_attention_heads=16 num_key_value_heads=2 max_position_embeddings=32768
  attention_bias=false head_dim=256 linear_conv_kernel_dim=4 linear_key_head_dim=128 linear_value_head_dim=128
  linear_num_key_heads=16 linear_num_value_heads=32
qwen3_omni_moe_text Qwen3OmniMoeTextConfig
  hidden_size=2048 num_hidden_layers=28 num_attention_heads=28 num_key_value_heads=4 max_position_embeddings=32768
  attention_bias=false
qwen3_vl_moe_text Qwen3VLMoeTextConfig
  hidden_size=2048 num_hidden_layers=24 num_attention_heads=16 num_key_value_heads=16 max_position_embeddings=128000
  attention_bias=false
qwen3_vl_text Qwen3VLTextConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=32 head_dim=128
  max_position_embeddings=128000 attention_bias=false
roberta RobertaConfig
  hidden_size=768 num_hidden_layers=12 num_attention_heads=12 max_position_embeddings=512 is_decoder=false
sarvam_mla SarvamMLAConfig
  hidden_size=4096 num_hidden_layers=32 num_attention_heads=64 kv_lora_rank=512 qk_rope_head_dim=64 v_head_dim=128
  qk_nope_head_dim=128 first_k_dense_replace=1 max_position_embeddings=4096 attention_bias=false
sarvam_moe SarvamMoEConfig
  hidden_size=4096 num_hidden_layers=19 num_attention_heads=64 num_key_value_heads=4 max_position_embeddings=131072
  attention_bias=false first_k_dense_replace=1 head_dim=64
seed_oss SeedOssConfig
  hidden_size=4096 num_hidden_layers=64 num_attention_heads=80 num_key_value_heads=8 max_position_embeddings=524288
  attention_bias=true attention_out_bias=false head_dim=128
smollm3 SmolLM3Config
  hidden_size=2048 num_hidden_layers=36 num_attention_heads=16 num_key_value_heads=4 max_position_embeddings=32768
  use_sliding_window=false no_rope_layer_interval=4 attention_bias=false
solar_open SolarOpenConfig
  hidden_size=4096 num_hidden_layers=48 num_attention_heads=64 num_key_value_heads=8 max_position_embeddings=131072
  attention_bias=false head_dim=128
stablelm StableLmConfig
  hidden_size=2560 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=32 max_position_embeddings=4096
  use_qkv_bias=false
starcoder2 Starcoder2Config
  hidden_size=3072 num_hidden_layers=30 num_attention_heads=24 num_key_value_heads=2 max_position_embeddings=4096
  use_bias=true
step3p5 Step3p7TextConfig
  hidden_size=4096 num_hidden_layers=45 num_attention_heads=64 num_key_value_heads=8 head_dim=128
  max_position_embeddings=128000 attention_bias=false
t5 T5Config
  d_model=512 d_kv=64 num_layers=6 num_heads=8 is_decoder=false
umt5 UMT5Config
  d_model=512 d_kv=64 num_layers=8 num_heads=6 is_decoder=false
vaultgemma VaultGemmaConfig
  hidden_size=2304 num_hidden_layers=26 num_attention_heads=8 num_key_value_heads=4 head_dim=256
  max_position_embeddings=8192 attention_bias=false sliding_window=4096
whisper WhisperConfig
  encoder_layers=4 encoder_attention_heads=6 decoder_layers=4 decoder_attention_heads=6 d_model=384
  max_source_positions=1500 max_target_positions=448
xglm XGLMConfig
  max_position_embeddings=2048 d_model=1024 num_layers=24 attention_heads=16
xlm-roberta XLMRobertaConfig
  hidden_size=768 num_hidden_layers=12 num_attention_heads=12 max_position_embeddings=512 is_decoder=false
youtu YoutuConfig
  hidden_size=2048 num_hidden_layers=32 num_attention_heads=16 num_key_value_heads=16 kv_lora_rank=512 q_lora_rank=1536
  qk_rope_head_dim=64 v_head_dim=128 qk_nope_head_dim=128 max_position_embeddings=131072 attention_bias=false
zamba ZambaConfig
  hidden_size=3712 num_hidden_layers=76 num_attention_heads=16 num_key_value_heads=16 n_mamba_heads=2
  max_position_embeddings=4096 attn_layer_period=6 attn_layer_offset=4 mamba_d_state=16 mamba_d_conv=4 mamba_expand=2
zamba2 Zamba2Config
  max_position_embeddings=4096 hidden_size=2560 num_hidden_layers=54 mamba_d_state=64 mamba_d_conv=4 mamba_expand=2
  mamba_ngroups=1 n_mamba_heads=8 add_bias_linear=false num_attention_heads=32 num_mem_blocks=1
  use_shared_attention_adapter=false adapter_rank=128
"""


def _parsed(table: str) -> dict[str, tuple[str, _Defaults]]:
    entries: dict[str, tuple[str, dict[str, int | str | bool]]] = {}
    fields: dict[str, int | str | bool] = {}
    for line in table.strip().splitlines():
        if line.startswith(" "):
            fields.update((name, _value(text)) for name, text in (pair.split("=") for pair in line.split()))
        else:
            model_type, source = line.split()
            fields = {}
            entries[model_type] = (source, fields)
    return dict(entries)


def _value(text: str) -> int | str | bool:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdecimal() else text


# Fields that a class reads without keeping them under that name.
ARGUMENTS: dict[str, _Defaults] = {
    model_type: {"global_head_dim": 512} for model_type in ("gemma4_text", "gemma4_unified_text")
}

# model_type -> (class, field -> default).
CLASS_DEFAULTS: dict[str, tuple[str, _Defaults]] = {
    model_type: (source, {**fields, **ARGUMENTS.get(model_type, {})})
    for model_type, (source, fields) in _parsed(_TABLE).items()
}

# Families whose code is not in transformers: model_type -> (whose defaults, field -> default).
REMOTE_DEFAULTS: dict[str, tuple[str, _Defaults]] = {
    "RefinedWeb": ("configuration_RW.py of tiiuae/falcon-40b", {"alibi": False, "bias": False, "multi_query": False}),
    "RefinedWebModel": (
        "configuration_RW.py of tiiuae/falcon-7b",
        {"alibi": False, "bias": False, "multi_query": False, "new_decoder_architecture": False},
    ),
    "chatglm": (
        "configuration_chatglm.py of THUDM/chatglm3-6b",
        {"add_bias_linear": False, "add_qkv_bias": False, "multi_query_attention": False, "multi_query_group_num": 1},
    ),
    "deepseek": ("configuration_deepseek.py of deepseek-ai/deepseek-moe-16b-base", {"attention_bias": False}),
    "hunyuan": (
        "configuration_hunyuan.py of tencent/Tencent-Hunyuan-Large",
        {"attention_bias": False, "use_cla": False},
    ),
    "internlm2": ("configuration_internlm2.py of internlm/internlm2-7b", {"bias": True}),
    "kimi_k2": ("configuration_deepseek.py of moonshotai/Kimi-K2-Instruct", {"attention_bias": False}),
    "mimo": ("Qwen2Config, which MiMoConfig extends", {"use_sliding_window": False, "max_window_layers": 28}),
    "mimo_v2": ("MiMoV2FlashConfig of transformers 5.24.0, which it follows", {"attention_bias": False}),
    "phi4mm": ("configuration_phi4mm.py of microsoft/Phi-4-multimodal-instruct", {"max_position_embeddings": 4096}),
    "minicpm": ("configuration_minicpm.py of openbmb/MiniCPM-2B", {"attention_bias": False}),
}
