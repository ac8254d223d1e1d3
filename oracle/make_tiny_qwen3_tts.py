"""Tiny random Qwen3-TTS-12Hz checkpoints: custom_voice (1.7B-like: predictor narrower than talker -> small_to_mtp_projection) and
base (0.6B-like: no projection, ECAPA speaker encoder), each with speech_tokenizer/ (12 Hz, Mimi encoder + code2wav decoder, f32).
run:  OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1 v4/bin/python make_tiny_qwen3_tts.py [out_root]   (transformers 4.57.3, qwen-tts 0.1.1)"""

import json, sys, os, torch

torch.manual_seed(0)
from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration
from qwen_tts.core import Qwen3TTSTokenizerV2Config, Qwen3TTSTokenizerV2Model
from tinylib import *

OUT = sys.argv[1] if len(sys.argv) > 1 else "tiny/qwen3_tts"
CB, G, V = 128, 8, 512
codec = lambda real: real - 2048 + CB
LANG = {
    k: codec(v)
    for k, v in {
        "chinese": 2055,
        "english": 2050,
        "german": 2053,
        "italian": 2070,
        "portuguese": 2071,
        "spanish": 2054,
        "japanese": 2058,
        "korean": 2064,
        "french": 2061,
        "russian": 2069,
        "beijing_dialect": 2074,
        "sichuan_dialect": 2062,
    }.items()
}
SPK = {
    k: codec(v)
    for k, v in {
        "serena": 3066,
        "vivian": 3065,
        "uncle_fu": 3010,
        "ryan": 3061,
        "aiden": 2861,
        "ono_anna": 2873,
        "sohee": 2864,
        "eric": 2875,
        "dylan": 2878,
    }.items()
}
DIA = {k: False for k in SPK} | {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}


def tts_cfg(kind, ids):
    H, CPH = (64, 48) if kind == "custom_voice" else (64, 64)
    cp = dict(
        model_type="qwen3_tts_talker_code_predictor",
        vocab_size=CB,
        hidden_size=CPH,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=65536,
        rms_norm_eps=1e-6,
        rope_theta=1000000,
        rope_scaling=None,
        num_code_groups=G,
        layer_types=["full_attention"] * 3,
        use_sliding_window=False,
        sliding_window=None,
        max_window_layers=28,
    )
    talker = dict(
        model_type="qwen3_tts_talker",
        code_predictor_config=cp,
        vocab_size=CB + 1024,
        hidden_size=H,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        rope_theta=1000000,
        rope_scaling={"interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default", "type": "default"},
        num_code_groups=G,
        text_hidden_size=80,
        text_vocab_size=V,
        codec_pad_id=codec(2148),
        codec_bos_id=codec(2149),
        codec_eos_token_id=codec(2150),
        codec_think_id=codec(2154),
        codec_nothink_id=codec(2155),
        codec_think_bos_id=codec(2156),
        codec_think_eos_id=codec(2157),
        codec_language_id=LANG,
        position_id_per_seconds=13,
        spk_id=SPK if kind == "custom_voice" else {},
        spk_is_dialect=DIA if kind == "custom_voice" else {},
        use_sliding_window=False,
        sliding_window=None,
    )
    spk = (
        dict(
            enc_dim=H,
            enc_channels=[32, 32, 32, 32, 96],
            enc_attention_channels=16,
            enc_se_channels=16,
            enc_res2net_scale=8,
            mel_dim=128,
            sample_rate=24000,
        )
        if kind == "base"
        else None
    )
    c = Qwen3TTSConfig(
        talker_config=talker,
        tokenizer_type="qwen3_tts_tokenizer_12hz",
        tts_model_size="1b7" if kind == "custom_voice" else "0b6",
        tts_model_type=kind,
        speaker_encoder_config=spk,
        im_start_token_id=ids["<|im_start|>"],
        im_end_token_id=ids["<|im_end|>"],
        tts_pad_token_id=ids["<tts_pad>"],
        tts_bos_token_id=ids["<tts_text_bos>"],
        tts_eos_token_id=ids["<tts_text_eod>"],
        assistant_token_id=ids["assistant"],
    )
    c.architectures = ["Qwen3TTSForConditionalGeneration"]
    return c, dict(talker=talker, cp=cp, spk=spk)


RULES = [
    R("codec_embedding", std=1.0),
    R("text_embedding", std=1.0),
    R("lm_head", scale=4.0),
    R("codec_head", scale=4.0),
    R("speaker_encoder.fc", scale=3.0),
]
DEC_RULES = [
    R("layer_scale.scale", mean=0.4, std=0.1),
    R("layer_scale", mean=0.4, std=0.1),
    R(".gamma", mean=0.4, std=0.1),
    R(".alpha", mean=0.2, std=0.3),
    R(".beta", mean=0.3, std=0.3),
    (lambda n, p: n.endswith("cluster_usage"), lambda n, p, g: 0.5 + 3 * torch.rand(p.shape, generator=g)),
    R("embedding_sum", std=1.5),
    R("decoder.decoder.6.conv.weight", scale=0.03),
    R("decoder.decoder.6.conv.bias", std=0.02),
    (
        lambda n, p: "decoder.decoder" in n and ".block.1.conv.weight" in n,
        lambda n, p, g: torch.randn(p.shape, generator=g) / (2 * p.shape[0]) ** 0.5,
    ),
    (
        lambda n, p: "decoder.upsample" in n and ".0.conv.weight" in n,
        lambda n, p, g: torch.randn(p.shape, generator=g) / p.shape[0] ** 0.5,
    ),
    R("conv2.conv.weight", scale=0.5),
]


def make_tokenizer_model(out):
    dec = dict(
        codebook_size=CB,
        hidden_size=48,
        latent_dim=64,
        codebook_dim=32,
        max_position_embeddings=8000,
        rope_theta=10000,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        attention_bias=False,
        sliding_window=8,
        intermediate_size=64,
        hidden_act="silu",
        layer_scale_initial_scale=0.01,
        rms_norm_eps=1e-5,
        num_hidden_layers=2,
        num_quantizers=G,
        num_semantic_quantizers=1,
        semantic_codebook_size=2 * CB,
        vector_quantization_hidden_dimension=32,
        upsample_rates=[8, 5, 4, 3],
        upsampling_ratios=[2, 2],
        decoder_dim=96,
    )
    enc = dict(
        sampling_rate=24000,
        frame_rate=12.5,
        audio_channels=1,
        hidden_size=32,
        num_filters=4,
        num_residual_layers=1,
        upsampling_ratios=[8, 6, 5, 4],
        kernel_size=7,
        last_kernel_size=3,
        residual_kernel_size=3,
        dilation_growth_rate=2,
        use_causal_conv=True,
        pad_mode="constant",
        compress=2,
        trim_right_ratio=1.0,
        codebook_size=CB,
        codebook_dim=16,
        num_quantizers=2 * G,
        use_conv_shortcut=False,
        vector_quantization_hidden_dimension=16,
        num_semantic_quantizers=1,
        upsample_groups=32,
        num_hidden_layers=2,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        hidden_act="gelu",
        max_position_embeddings=8000,
        norm_eps=1e-5,
        rope_theta=10000.0,
        sliding_window=250,
        layer_scale_initial_scale=0.01,
    )
    c = Qwen3TTSTokenizerV2Config(encoder_config=enc, decoder_config=dec, encoder_valid_num_quantizers=G)
    c.architectures = ["Qwen3TTSTokenizerV2Model"]
    m = Qwen3TTSTokenizerV2Model._from_config(c, attn_implementation="eager").eval()
    init_weights(m, 77, DEC_RULES)
    g = torch.Generator().manual_seed(78)
    with torch.no_grad():
        for n, b in sorted(m.named_buffers()):
            if n.endswith("embed_sum"):
                b.copy_(torch.randn(b.shape, generator=g) * 1.5)
            elif n.endswith("cluster_usage"):
                b.copy_(0.5 + 3 * torch.rand(b.shape, generator=g))
            elif n.endswith("initialized"):
                b.fill_(1)
    os.makedirs(out, exist_ok=True)
    sd = {k: v.detach().contiguous().clone() for k, v in m.state_dict().items()}
    save_file(sd, f"{out}/model.safetensors", metadata={"format": "pt"})
    d = c.to_dict()
    d["encoder_config"].update(enc)
    d["dtype"] = "float32"
    json.dump(d, open(f"{out}/config.json", "w"), indent=1)
    json.dump(
        {
            "chunk_length_s": None,
            "feature_extractor_type": "EncodecFeatureExtractor",
            "feature_size": 1,
            "overlap": None,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
            "sampling_rate": 24000,
        },
        open(f"{out}/preprocessor_config.json", "w"),
        indent=1,
    )
    json.dump({k: list(v.shape) for k, v in sd.items()}, open(f"{out}/tensor_shapes.json", "w"), indent=0)
    print("speech_tokenizer params", sum(v.numel() for v in sd.values()), len(sd))


for kind, seed in (("custom_voice", 4321), ("base", 4322)):
    out = f"{OUT}/{kind}"
    os.makedirs(out, exist_ok=True)
    tok, ids = build_tokenizer(out, processor_class="Qwen3TTSProcessor")
    assert len(tok.encode("<|im_end|>\n<|im_start|>assistant\n").ids) == 5
    c, raw = tts_cfg(kind, ids)
    m = Qwen3TTSForConditionalGeneration._from_config(c, attn_implementation="eager").eval()
    init_weights(m, int(os.environ.get("SEED", seed)), RULES)
    sd = save_bf16(m, out)
    d = c.to_dict()
    d["talker_config"] = {**d["talker_config"], **raw["talker"]}
    d["dtype"] = "bfloat16"
    d.pop(
        "speaker_encoder_config", None
    )  # the config class accepts no extra keys here; only Base has it in the real repos
    if raw["spk"]:
        d["speaker_encoder_config"] = raw["spk"]
    json.dump(d, open(f"{out}/config.json", "w"), indent=1)
    json.dump(
        {
            "do_sample": True,
            "repetition_penalty": 1.05,
            "temperature": 0.9,
            "top_p": 1.0,
            "top_k": 50,
            "subtalker_dosample": True,
            "subtalker_temperature": 0.9,
            "subtalker_top_p": 1.0,
            "subtalker_top_k": 50,
            "max_new_tokens": 8192,
        },
        open(f"{out}/generation_config.json", "w"),
        indent=1,
    )
    json.dump({"processor_class": "Qwen3TTSProcessor"}, open(f"{out}/preprocessor_config.json", "w"))
    json.dump({k: list(v.shape) for k, v in sd.items()}, open(f"{out}/tensor_shapes.json", "w"), indent=0)
    print(kind, "params", sum(v.numel() for v in sd.values()), len(sd))
    make_tokenizer_model(f"{out}/speech_tokenizer")
