"""Build the tiny random Qwen3-Omni-MoE checkpoint (real layout, tensor names as in Qwen3-Omni-30B-A3B-Instruct).
run:  OMP_NUM_THREADS=2 v4/bin/python make_tiny_qwen3_omni.py [out_dir]   (transformers 4.57.3; default tiny/qwen3_omni)"""

import json, sys, torch, os

torch.manual_seed(0)
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration
from tinylib import *

OUT = sys.argv[1] if len(sys.argv) > 1 else "tiny/qwen3_omni"
SEED = int(os.environ.get("SEED", 1234))
os.makedirs(OUT, exist_ok=True)
tok, ids = build_tokenizer(OUT)
V = 512
assert max(ids.values()) < V, max(ids.values())
rope = {
    "rope_type": "default",
    "type": "default",
    "interleaved": True,
    "mrope_interleaved": True,
    "mrope_section": [6, 5, 5],
}
H = 64
audio = dict(
    model_type="qwen3_omni_moe_audio_encoder",
    num_mel_bins=128,
    encoder_layers=2,
    encoder_attention_heads=4,
    encoder_ffn_dim=96,
    d_model=48,
    activation_function="gelu",
    max_source_positions=1500,
    n_window=50,
    n_window_infer=200,
    conv_chunksize=500,
    downsample_hidden_size=8,
    output_dim=H,
    scale_embedding=False,
)  # real: n_window_infer=800; 200 here so that a short clip spans several attention windows
vision = dict(
    model_type="qwen3_omni_moe_vision_encoder",
    depth=4,
    hidden_size=48,
    hidden_act="gelu_pytorch_tanh",
    intermediate_size=96,
    num_heads=4,
    in_channels=3,
    patch_size=16,
    spatial_merge_size=2,
    temporal_patch_size=2,
    out_hidden_size=H,
    num_position_embeddings=36,
    deepstack_visual_indexes=[1, 2, 3],
)
text = dict(
    model_type="qwen3_omni_moe_text",
    vocab_size=V,
    hidden_size=H,
    intermediate_size=32,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    hidden_act="silu",
    max_position_embeddings=65536,
    rms_norm_eps=1e-6,
    rope_theta=1000000,
    rope_scaling=rope,
    attention_bias=False,
    sliding_window=None,
    use_sliding_window=False,
    decoder_sparse_step=1,
    moe_intermediate_size=32,
    num_experts_per_tok=2,
    num_experts=8,
    norm_topk_prob=True,
    mlp_only_layers=[],
    tie_word_embeddings=False,
    use_qk_norm=True,
    shared_expert_intermediate_size=0,
)
CB = 128  # codes per codebook (real 2048); talker vocab = CB + 1024 (real 2048 + 1024 = 3072)
codec = lambda real: real - 2048 + CB
G = 8  # code groups (real 16)
cp = dict(
    model_type="qwen3_omni_moe_talker_code_predictor",
    vocab_size=CB,
    hidden_size=H,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=32768,
    rms_norm_eps=1e-6,
    rope_theta=1000000,
    rope_scaling=None,
    num_code_groups=G,
    layer_types=["full_attention"] * 3,
    sliding_window=None,
    use_sliding_window=False,
    max_window_layers=28,
)
ttext = dict(
    model_type="qwen3_omni_moe_talker_text",
    vocab_size=CB + 1024,
    hidden_size=H,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=32,
    max_position_embeddings=65536,
    rms_norm_eps=1e-6,
    rope_theta=1000000,
    rope_scaling={k: v for k, v in rope.items() if k != "mrope_interleaved"},
    moe_intermediate_size=24,
    shared_expert_intermediate_size=40,
    num_experts_per_tok=2,
    num_experts=8,
    norm_topk_prob=True,
    mlp_only_layers=[],
    decoder_sparse_step=1,
    sliding_window=None,
    use_sliding_window=False,
)
tokids = dict(
    audio_token_id=ids["<|audio_pad|>"],
    image_token_id=ids["<|image_pad|>"],
    video_token_id=ids["<|video_pad|>"],
    audio_start_token_id=ids["<|audio_start|>"],
    audio_end_token_id=ids["<|audio_end|>"],
    vision_start_token_id=ids["<|vision_start|>"],
    position_id_per_seconds=13,
    seconds_per_chunk=2,
)
cfg = Qwen3OmniMoeConfig(
    thinker_config=dict(
        model_type="qwen3_omni_moe_thinker",
        audio_config=audio,
        vision_config=vision,
        text_config=text,
        user_token_id=ids["user"],
        vision_end_token_id=ids["<|vision_end|>"],
        **tokids,
    ),
    talker_config=dict(
        text_config=ttext,
        code_predictor_config=cp,
        num_code_groups=G,
        thinker_hidden_size=H,
        accept_hidden_layer=4,  # must be > number of deepstack levels (3): see SPEC, 4.57 records hidden states after the in-place deepstack add
        codec_pad_id=codec(2148),
        codec_bos_id=codec(2149),
        codec_eos_token_id=codec(2150),
        codec_nothink_id=codec(2155),
        codec_think_bos_id=codec(2156),
        codec_think_eos_id=codec(2157),
        spatial_merge_size=2,
        speaker_id={"chelsie": codec(2301), "ethan": codec(2302), "aiden": codec(2303)},
        output_router_logits=False,
        **tokids,
    ),
    code2wav_config=dict(
        codebook_size=CB,
        hidden_size=H,
        max_position_embeddings=8000,
        rope_theta=10000,
        num_attention_heads=4,
        num_key_value_heads=4,
        attention_bias=False,
        sliding_window=8,
        intermediate_size=96,
        hidden_act="silu",
        layer_scale_initial_scale=0.01,
        rms_norm_eps=1e-5,
        num_hidden_layers=2,
        num_quantizers=G,
        upsample_rates=[8, 5, 4, 3],
        upsampling_ratios=[2, 2],
        decoder_dim=96,
    ),
    enable_audio_output=True,
    im_start_token_id=ids["<|im_start|>"],
    im_end_token_id=ids["<|im_end|>"],
    tts_pad_token_id=ids["<tts_pad>"],
    tts_bos_token_id=ids["<tts_text_bos>"],
    tts_eos_token_id=ids["<tts_text_eod>"],
    system_token_id=ids["system"],
    user_token_id=ids["user"],
    assistant_token_id=ids["assistant"],
)
cfg.architectures = ["Qwen3OmniMoeForConditionalGeneration"]
m = Qwen3OmniMoeForConditionalGeneration._from_config(cfg, attn_implementation="eager").eval()
rules = [
    R("code2wav.code_embedding", std=3.0),  # mean over G groups
    R("embed_tokens", std=1.0),
    R("codec_embedding", std=1.0),
    R("pos_embed", std=0.5),
    R("mlp.gate.weight", scale=1.5),  # spread router logits
    R("lm_head", scale=4.0),
    R("codec_head", scale=4.0),  # clear argmax margins
    R("layer_scale.scale", mean=0.4, std=0.1),
    R(".gamma", mean=0.4, std=0.1),
    R(".alpha", mean=0.2, std=0.3),
    R(".beta", mean=0.3, std=0.3),
    R("code2wav.decoder.6.conv.weight", scale=0.025),
    R("code2wav.decoder.6.conv.bias", std=0.02),
    R("code2wav.decoder", scale=1.0)
    if False
    else (
        lambda n, p: "code2wav.decoder" in n and ".block.1.conv.weight" in n,
        lambda n, p, g: torch.randn(p.shape, generator=g) / (2 * p.shape[0]) ** 0.5,
    ),  # ConvTranspose1d [in,out,k]: 2 taps per output
    (
        lambda n, p: "code2wav.upsample" in n and ".0.conv.weight" in n,
        lambda n, p, g: torch.randn(p.shape, generator=g) / p.shape[0] ** 0.5,
    ),
    R("conv2.conv.weight", scale=0.5),
]
init_weights(m, SEED, rules)
sd = save_bf16(m, OUT)
d = cfg.to_dict()
d["dtype"] = "bfloat16"
d["transformers_version"] = "4.57.3"
json.dump(d, open(f"{OUT}/config.json", "w"), indent=1)
json.dump(
    {
        "transformers_version": "4.57.3",
        "thinker_max_new_tokens": 1024,
        "thinker_eos_token_id": ids["<|im_end|>"],
        "talker_do_sample": True,
        "talker_top_k": 50,
        "talker_top_p": 1.0,
        "talker_temperature": 0.9,
        "talker_repetition_penalty": 1.05,
        "talker_max_new_tokens": 4096,
        "pad_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
    },
    open(f"{OUT}/generation_config.json", "w"),
    indent=1,
)
json.dump(
    {
        "chunk_length": 30,
        "dither": 0.0,
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 128,
        "hop_length": 160,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Qwen2VLImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "max_pixels": 12845056,
        "merge_size": 2,
        "min_pixels": 3136,
        "n_fft": 400,
        "n_samples": 4800000,
        "nb_max_frames": 30000,
        "padding_side": "right",
        "padding_value": 0.0,
        "patch_size": 16,
        "processor_class": "Qwen3OmniMoeProcessor",
        "return_attention_mask": True,
        "sampling_rate": 16000,
        "temporal_patch_size": 2,
    },
    open(f"{OUT}/preprocessor_config.json", "w"),
    indent=1,
)
json.dump({k: list(v.shape) for k, v in sd.items()}, open(f"{OUT}/tensor_shapes.json", "w"), indent=0)
print(
    "params",
    sum(v.numel() for v in sd.values()),
    "tensors",
    len(sd),
    "ids",
    {k: ids[k] for k in ("<|im_start|>", "system", "user", "assistant", "\n", "<tts_pad>")},
)
