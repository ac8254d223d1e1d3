"""Puts the trained parts into one Hugging Face checkpoint directory (Qwen3OmniMoeForConditionalGeneration).

    python assemble.py TEXT_DIR THINKER_DIR TALKER_DIR C2W_DIR OUT_DIR
The audio and vision towers exist (so that every tensor of the architecture is present) but are tiny and untrained.
"""

import json, os, shutil, sys
import torch

if torch.version.cuda and not torch.cuda.is_available():
    torch.cuda.is_current_stream_capturing = lambda: False
from safetensors.torch import save_file
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration
from nets import *

text, th_d, tk_d, c2w_d, OUT = sys.argv[1:6]
TALKER_TEMPERATURE = 0.3  # how freely the voice is sampled; README.md has what other temperatures cost
os.makedirs(OUT, exist_ok=True)
I = Ids(text)
t = I.tok.token_to_id
H = TH["hidden"]
rope = {
    "rope_type": "default",
    "type": "default",
    "interleaved": True,
    "mrope_interleaved": True,
    "mrope_section": [12, 10, 10],
}
audio = dict(
    model_type="qwen3_omni_moe_audio_encoder",
    num_mel_bins=128,
    encoder_layers=1,
    encoder_attention_heads=2,
    encoder_ffn_dim=64,
    d_model=32,
    activation_function="gelu",
    max_source_positions=1500,
    n_window=50,
    n_window_infer=800,
    conv_chunksize=500,
    downsample_hidden_size=4,
    output_dim=H,
    scale_embedding=False,
)
vision = dict(
    model_type="qwen3_omni_moe_vision_encoder",
    depth=2,
    hidden_size=32,
    hidden_act="gelu_pytorch_tanh",
    intermediate_size=64,
    num_heads=2,
    in_channels=3,
    patch_size=16,
    spatial_merge_size=2,
    temporal_patch_size=2,
    out_hidden_size=H,
    num_position_embeddings=36,
    deepstack_visual_indexes=[1],
)
common = dict(
    hidden_act="silu",
    rms_norm_eps=1e-6,
    rope_theta=1000000,
    attention_bias=False,
    sliding_window=None,
    use_sliding_window=False,
    decoder_sparse_step=1,
    norm_topk_prob=True,
    mlp_only_layers=[],
)
ttx = dict(
    model_type="qwen3_omni_moe_text",
    vocab_size=VOCAB,
    hidden_size=H,
    intermediate_size=TH["inter"],
    num_hidden_layers=TH["layers"],
    num_attention_heads=TH["heads"],
    num_key_value_heads=TH["kv"],
    head_dim=TH["hd"],
    max_position_embeddings=65536,
    rope_scaling=rope,
    moe_intermediate_size=TH["inter"],
    num_experts_per_tok=TH["topk"],
    num_experts=TH["experts"],
    tie_word_embeddings=False,
    use_qk_norm=True,
    shared_expert_intermediate_size=0,
    **common,
)
cp = dict(
    model_type="qwen3_omni_moe_talker_code_predictor",
    vocab_size=CB,
    hidden_size=CP["hidden"],
    intermediate_size=CP["dense"],
    num_hidden_layers=CP["layers"],
    num_attention_heads=CP["heads"],
    num_key_value_heads=CP["kv"],
    head_dim=CP["hd"],
    max_position_embeddings=32768,
    rms_norm_eps=1e-6,
    rope_theta=1000000,
    rope_scaling=None,
    num_code_groups=G,
    layer_types=["full_attention"] * CP["layers"],
    sliding_window=None,
    use_sliding_window=False,
    max_window_layers=28,
)
tkt = dict(
    model_type="qwen3_omni_moe_talker_text",
    vocab_size=CB + 1024,
    hidden_size=TK["hidden"],
    intermediate_size=TK["text_inter"],
    num_hidden_layers=TK["layers"],
    num_attention_heads=TK["heads"],
    num_key_value_heads=TK["kv"],
    head_dim=TK["hd"],
    max_position_embeddings=65536,
    rope_scaling={k: v for k, v in rope.items() if k != "mrope_interleaved"},
    moe_intermediate_size=TK["inter"],
    shared_expert_intermediate_size=TK["shared"],
    num_experts_per_tok=TK["topk"],
    num_experts=TK["experts"],
    **common,
)
ids = dict(
    audio_token_id=t("<|audio_pad|>"),
    image_token_id=t("<|image_pad|>"),
    video_token_id=t("<|video_pad|>"),
    audio_start_token_id=t("<|audio_start|>"),
    audio_end_token_id=t("<|audio_end|>"),
    vision_start_token_id=t("<|vision_start|>"),
    position_id_per_seconds=13,
    seconds_per_chunk=2,
)
cfg = Qwen3OmniMoeConfig(
    thinker_config=dict(
        model_type="qwen3_omni_moe_thinker",
        audio_config=audio,
        vision_config=vision,
        text_config=ttx,
        user_token_id=I.user,
        vision_end_token_id=t("<|vision_end|>"),
        **ids,
    ),
    talker_config=dict(
        text_config=tkt,
        code_predictor_config=cp,
        num_code_groups=G,
        thinker_hidden_size=H,
        accept_hidden_layer=3,
        codec_pad_id=PAD_C,
        codec_bos_id=BOS_C,
        codec_eos_token_id=EOS_C,
        codec_nothink_id=NOTHINK,
        codec_think_bos_id=THINK_BOS,
        codec_think_eos_id=THINK_EOS,
        spatial_merge_size=2,
        speaker_id=SPK,
        output_router_logits=False,
        **ids,
    ),
    code2wav_config=C2W,
    enable_audio_output=True,
    im_start_token_id=I.im_start,
    im_end_token_id=I.im_end,
    tts_pad_token_id=I.pad,
    tts_bos_token_id=I.bos,
    tts_eos_token_id=I.eos,
    system_token_id=I.system,
    user_token_id=I.user,
    assistant_token_id=I.assistant,
)
cfg.architectures = ["Qwen3OmniMoeForConditionalGeneration"]
torch.manual_seed(0)
hf = Qwen3OmniMoeForConditionalGeneration._from_config(cfg)
th = Thinker()
th.load_state_dict(torch.load(f"{th_d}/thinker.pt", map_location="cpu"))
tk = Talker(th.embed_tokens.weight)
tk.load_state_dict(torch.load(f"{tk_d}/talker.pt", map_location="cpu"))
sd = {k: v.detach() for k, v in {**th.to_hf(), **tk.to_hf()}.items()}
sd.update(
    {
        "code2wav." + k: v
        for k, v in torch.load(f"{c2w_d}/code2wav.pt", map_location="cpu").items()
        if "inv_freq" not in k and "code_offset" not in k
    }
)
for k in sd:
    if k.startswith("talker.code_predictor.lm_head."):
        sd[k] = sd[k].float() / PREDICTOR_TEMPERATURE
for k, v in hf.state_dict().items():  # towers: random but finite
    k = k.replace("thinker.model.audio_tower", "thinker.audio_tower").replace(
        "thinker.model.visual", "thinker.visual"
    )  # transformers 5.x -> checkpoint names
    if k.startswith(("thinker.audio_tower.", "thinker.visual.")):
        sd[k] = (
            torch.randn(v.shape) * 0.02
            if v.dim() > 1
            else (torch.ones(v.shape) if k.endswith("weight") else torch.zeros(v.shape))
        )
bf = {k: v.float().contiguous().to(torch.bfloat16).clone() for k, v in sd.items()}
save_file(bf, f"{OUT}/model.safetensors", metadata={"format": "pt"})
d = cfg.to_dict()
d["dtype"] = "bfloat16"
json.dump(d, open(f"{OUT}/config.json", "w"), indent=1)
json.dump(
    {
        "thinker_max_new_tokens": 256,
        "thinker_eos_token_id": I.im_end,
        "talker_do_sample": True,
        "talker_top_k": 50,
        "talker_top_p": 1.0,
        "talker_temperature": TALKER_TEMPERATURE,
        "talker_repetition_penalty": 1.05,
        "talker_max_new_tokens": 600,
        "pad_token_id": I.eot,
        "eos_token_id": I.im_end,
        "do_sample": False,
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
        "image_mean": [0.5] * 3,
        "image_processor_type": "Qwen2VLImageProcessor",
        "image_std": [0.5] * 3,
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
for f in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "chat_template.json"):
    shutil.copy(f"{text}/{f}", OUT)
per = {}
for k, v in bf.items():
    g = (
        "code_predictor"
        if "code_predictor" in k
        else "audio tower"
        if "audio_tower" in k
        else "vision tower"
        if "visual" in k
        else k.split(".")[0]
    )
    per[g] = per.get(g, 0) + v.numel()
print("parameters", per, "total", sum(per.values()), "bytes", os.path.getsize(f"{OUT}/model.safetensors"))
