"""Instantiate the real-size configs on the meta device; write name-pattern -> shape tables and byte counts (bf16).
run: v4/bin/python real_sizes.py [out_dir]   -> real_shapes.json, real_bytes.json, real_*.txt"""

import torch, json, re, sys, collections, os

OUT = sys.argv[1] if len(sys.argv) > 1 else "real"
os.makedirs(OUT, exist_ok=True)
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration
from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration
from qwen_tts.core import Qwen3TTSTokenizerV2Config, Qwen3TTSTokenizerV2Model
import transformers

transformers.logging.set_verbosity_error()
rope = {"rope_type": "default", "type": "default", "interleaved": True, "mrope_section": [24, 20, 20]}
tok = dict(
    audio_token_id=151675,
    image_token_id=151655,
    video_token_id=151656,
    audio_start_token_id=151669,
    audio_end_token_id=151670,
    vision_start_token_id=151652,
    position_id_per_seconds=13,
    seconds_per_chunk=2,
)
omni = Qwen3OmniMoeConfig(
    thinker_config=dict(
        audio_config=dict(n_window=50, n_window_infer=800, output_dim=2048),
        vision_config=dict(out_hidden_size=2048),
        user_token_id=872,
        vision_end_token_id=151653,
        text_config=dict(
            vocab_size=152064,
            hidden_size=2048,
            intermediate_size=768,
            num_hidden_layers=48,
            num_attention_heads=32,
            num_key_value_heads=4,
            head_dim=128,
            max_position_embeddings=65536,
            rope_theta=1000000,
            rope_scaling={**rope, "mrope_interleaved": True},
            moe_intermediate_size=768,
            num_experts=128,
            num_experts_per_tok=8,
            norm_topk_prob=True,
        ),
        **tok,
    ),
    talker_config=dict(
        num_code_groups=16,
        thinker_hidden_size=2048,
        accept_hidden_layer=24,
        codec_pad_id=2148,
        codec_bos_id=2149,
        codec_eos_token_id=2150,
        codec_nothink_id=2155,
        codec_think_bos_id=2156,
        codec_think_eos_id=2157,
        spatial_merge_size=2,
        speaker_id={"chelsie": 2301, "ethan": 2302, "aiden": 2303},
        text_config=dict(
            vocab_size=3072,
            hidden_size=1024,
            intermediate_size=2048,
            num_hidden_layers=20,
            num_attention_heads=16,
            num_key_value_heads=2,
            head_dim=128,
            max_position_embeddings=65536,
            rope_theta=1000000,
            rope_scaling=rope,
            moe_intermediate_size=384,
            shared_expert_intermediate_size=768,
            num_experts=128,
            num_experts_per_tok=6,
            norm_topk_prob=True,
        ),
        code_predictor_config=dict(
            vocab_size=2048,
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=5,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            rope_theta=1000000,
            num_code_groups=16,
            max_window_layers=28,
            layer_types=["full_attention"] * 5,
        ),
        **tok,
    ),
    code2wav_config=dict(upsample_rates=[8, 5, 4, 3], upsampling_ratios=[2, 2]),
)


def tts(H, I, kind, spk):
    cp = dict(
        vocab_size=2048,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=5,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=65536,
        rope_theta=1000000,
        num_code_groups=16,
    )
    t = dict(
        code_predictor_config=cp,
        vocab_size=3072,
        hidden_size=H,
        intermediate_size=I,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=32768,
        rope_theta=1000000,
        rope_scaling=rope,
        num_code_groups=16,
        text_hidden_size=2048,
        text_vocab_size=151936,
        codec_language_id={},
        spk_id={},
        spk_is_dialect={},
    )
    return Qwen3TTSConfig(
        talker_config=t,
        tts_model_type=kind,
        tts_model_size="x",
        speaker_encoder_config=dict(enc_dim=spk) if spk else None,
    )


dec = dict(
    codebook_size=2048,
    hidden_size=512,
    latent_dim=1024,
    codebook_dim=512,
    max_position_embeddings=8000,
    rope_theta=10000,
    num_attention_heads=16,
    num_key_value_heads=16,
    head_dim=64,
    sliding_window=72,
    intermediate_size=1024,
    num_hidden_layers=8,
    num_quantizers=16,
    upsample_rates=[8, 5, 4, 3],
    upsampling_ratios=[2, 2],
    decoder_dim=1536,
)
enc = dict(
    sampling_rate=24000,
    frame_rate=12.5,
    hidden_size=512,
    num_filters=64,
    upsampling_ratios=[8, 6, 5, 4],
    codebook_size=2048,
    codebook_dim=256,
    num_quantizers=32,
    vector_quantization_hidden_dimension=256,
    num_hidden_layers=8,
    intermediate_size=2048,
    num_attention_heads=8,
    num_key_value_heads=8,
    head_dim=64,
    sliding_window=250,
    use_conv_shortcut=False,
    use_causal_conv=True,
)
res = {}
with torch.device("meta"):
    res["tts_1.7B_custom_voice"] = Qwen3TTSForConditionalGeneration._from_config(tts(2048, 6144, "custom_voice", None))
    res["tts_0.6B_base"] = Qwen3TTSForConditionalGeneration._from_config(tts(1024, 3072, "base", 1024))
    res["tts_1.7B_base"] = Qwen3TTSForConditionalGeneration._from_config(tts(2048, 6144, "base", 2048))
    res["tts_tokenizer_12hz"] = Qwen3TTSTokenizerV2Model._from_config(
        Qwen3TTSTokenizerV2Config(encoder_config=enc, decoder_config=dec)
    )
    res["omni_30b"] = Qwen3OmniMoeForConditionalGeneration._from_config(omni)
out = {}
for k, m in res.items():
    sd = {n: tuple(p.shape) for n, p in m.state_dict().items()}
    out[k] = sd
    tot = sum(torch.Size(s).numel() for s in sd.values())
    groups = collections.Counter()
    for n, s in sd.items():
        groups[".".join(n.split(".")[:2])] += torch.Size(s).numel()
    print(k, "total params", tot, dict(groups.most_common(14)))
    pat = collections.OrderedDict()
    for n, s in sd.items():
        p = re.sub(r"\.\d+\.", lambda x: ".*.", n)
        p = re.sub(r"\.\d+\.", ".*.", p)
        pat.setdefault((p, s), []).append(n)
    with open(f"{OUT}/real_{k}.txt", "w") as f:
        for (p, s), ns in pat.items():
            f.write(f"{p}\t{list(s)}\tx{len(ns)}\n")
json.dump(
    {k: {n: list(s) for n, s in v.items() if ".experts." not in n or ".experts.0." in n} for k, v in out.items()},
    open(f"{OUT}/real_shapes.json", "w"),
)
B = 2
num = lambda s: torch.Size(s).numel()


def layer_bytes(sd, prefix, expert_per_tok=None):
    b = 0
    for n, s in sd.items():
        if not n.startswith(prefix):
            continue
        if ".mlp.experts." in n:
            if ".experts.0." in n:
                b += num(s) * expert_per_tok * B
        else:
            b += num(s) * B
    return b


R = {}
for k in ("tts_0.6B_base", "tts_1.7B_custom_voice"):
    sd = out[k]
    L = layer_bytes(sd, "talker.model.layers.") + num(sd["talker.model.norm.weight"]) * B
    head = num(sd["talker.codec_head.weight"]) * B
    cpl = layer_bytes(sd, "talker.code_predictor.model.layers.") + B * 1024
    lm = num(sd["talker.code_predictor.lm_head.0.weight"]) * B
    pr = sum(num(s) for n, s in sd.items() if "small_to_mtp" in n) * B
    R[k] = dict(
        talker_layers=L,
        codec_head=head,
        talker_step=L + head,
        cp_layers=cpl,
        cp_lm_head_each=lm,
        cp_projection=pr,
        cp_pass=cpl + lm + pr,
        cp_15_passes=15 * (cpl + lm + pr),
        per_frame_naive=L + head + 15 * (cpl + lm + pr),
        per_frame_cp_cached=L + head + cpl + pr + 15 * lm,
    )
sd = out["omni_30b"]
L = layer_bytes(sd, "talker.model.layers.", 6) + 1024 * B
head = num(sd["talker.codec_head.weight"]) * B
cpl = layer_bytes(sd, "talker.code_predictor.model.layers.") + B * 1024
lm = num(sd["talker.code_predictor.lm_head.0.weight"]) * B
R["omni_talker"] = dict(
    talker_layers_active=L,
    talker_layers_total=sum(num(s) for n, s in sd.items() if n.startswith("talker.model.layers.")) * B,
    codec_head=head,
    talker_step=L + head,
    cp_layers=cpl,
    cp_lm_head_each=lm,
    cp_pass=cpl + lm,
    cp_15_passes=15 * (cpl + lm),
    per_frame_naive=L + head + 15 * (cpl + lm),
    per_frame_cp_cached=L + head + cpl + 15 * lm,
)
T = layer_bytes(sd, "thinker.model.layers.", 8) + 2048 * B
lmh = num(sd["thinker.lm_head.weight"]) * B
R["omni_thinker"] = dict(
    layers_active=T,
    lm_head=lmh,
    step=T + lmh,
    active_params=(T + lmh) // B,
    total_params=sum(num(s) for n, s in sd.items() if n.startswith("thinker.model") or n.startswith("thinker.lm_head")),
)
for pre, k, key in (("code2wav.", "omni_30b", "omni_code2wav"), ("decoder.", "tts_tokenizer_12hz", "tts_decoder")):
    s2 = {n: s for n, s in out[k].items() if n.startswith(pre)}
    R[key] = {
        "params": sum(num(s) for s in s2.values()),
        "bytes_f32": 4 * sum(num(s) for s in s2.values()),
        **{
            g: sum(num(s) for n, s in s2.items() if n.startswith(pre + g))
            for g in ("pre_transformer", "quantizer", "code_embedding", "pre_conv", "upsample", "decoder")
        },
    }
R["tts_encoder_params"] = sum(num(s) for n, s in out["tts_tokenizer_12hz"].items() if n.startswith("encoder."))
for k in list(R):
    if isinstance(R[k], dict) and "per_frame_naive" in R[k]:
        for bw, nm in ((4.8e12, "H200_4.8TBps"), (3.35e12, "H100_3.35TBps"), (1.0e12, "1TBps")):
            R[k]["us_per_frame_naive@" + nm] = round(R[k]["per_frame_naive"] / bw * 1e6, 1)
json.dump(R, open(f"{OUT}/real_bytes.json", "w"), indent=1)
print(json.dumps(R, indent=1))
