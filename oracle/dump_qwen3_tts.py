"""Goldens for the tiny Qwen3-TTS checkpoints from qwen-tts 0.1.1 / transformers 4.57.3, float32, eager, greedy everywhere.
run:  OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1 v4/bin/python dump_qwen3_tts.py [ckpt_root]   -> <root>/golden/*.safetensors"""

import sys, os, json, collections
import numpy as np, torch
from tinylib import Gold, margin
import transformers

transformers.logging.set_verbosity_error()
from qwen_tts import Qwen3TTSModel
from qwen_tts.core.models import modeling_qwen3_tts as MQ

ROOT = sys.argv[1] if len(sys.argv) > 1 else "tiny/qwen3_tts"
OUT = f"{ROOT}/golden"
os.makedirs(OUT, exist_ok=True)
REC = None


def wrap(obj, name, fn):
    orig = getattr(obj, name)
    setattr(obj, name, lambda *a, **k: fn(orig, *a, **k))


def load(kind):
    w = Qwen3TTSModel.from_pretrained(f"{ROOT}/{kind}", dtype=torch.float32, attn_implementation="eager")
    m = w.model.eval()

    def f_gen(orig, *a, **k):
        if REC is not None:
            REC["tk_gen"] = k
        r = orig(*a, **k)
        if REC is not None:
            REC["tk_res"] = r
        return r

    wrap(m.talker, "generate", f_gen)

    def f_lm(orig, *a, **k):
        o = orig(*a, **k)
        if REC is not None:
            REC["emb"].append(k["inputs_embeds"])
            REC["pos"].append(k["position_ids"])
            REC["hid"].append(o.last_hidden_state)
            REC["all"].append(o.hidden_states)
        return o

    wrap(m.talker.model, "forward", f_lm)

    def f_head(orig, x):
        o = orig(x)
        if REC is not None:
            REC["logits"].append(o)
        return o

    wrap(m.talker.codec_head, "forward", f_head)

    def f_cp(orig, *a, **k):
        assert k["do_sample"] is False
        r = orig(*a, **{**k, "output_logits": True, "top_p": None, "top_k": None, "temperature": None})
        if REC is not None:
            REC["cp_in"].append(k["inputs_embeds"])
            REC["cp_logits"].append(torch.stack(r.logits, 1))
            REC["cp_hid"].append(torch.cat([h[-1][:, -1:] for h in r.hidden_states], 1))
        return r

    wrap(m.talker.code_predictor, "generate", f_cp)

    def f_top(orig, *a, **k):
        if REC is not None:
            REC["top"] = k
        r = orig(*a, **k)
        if REC is not None:
            REC["codes_list"] = r[0]
            REC["hid_list"] = r[1]
        return r

    wrap(m, "generate", f_top)
    return w, m


GREEDY = dict(do_sample=False, subtalker_dosample=False, repetition_penalty=1.05)


def case(name, w, m, call, n_frames, **extra_meta):
    global REC
    REC = collections.defaultdict(list)
    eos = extra_meta.pop("eos_token_id", None)
    with torch.no_grad():
        wavs, sr = call(max_new_tokens=n_frames, **({"eos_token_id": eos} if eos is not None else {}), **GREEDY)
    R = REC
    REC = None
    g = Gold(f"{OUT}/{name}.safetensors")
    k = R["top"]
    B = len(k["input_ids"])
    tc = m.config.talker_config
    for i in range(B):
        s = f".{i}" if B > 1 else ""
        g.add("input_ids" + s, k["input_ids"][i])
        if k.get("instruct_ids") is not None and k["instruct_ids"][i] is not None:
            g.add("instruct_ids" + s, k["instruct_ids"][i])
        if k.get("ref_ids") is not None and k["ref_ids"][i] is not None:
            g.add("ref_ids" + s, k["ref_ids"][i])
        v = k.get("voice_clone_prompt")
        if v is not None:
            g.add("ref_spk_embedding" + s, v["ref_spk_embedding"][i])
            if v["ref_code"][i] is not None:
                g.add("ref_code" + s, v["ref_code"][i])
        g.add("codes" + s, R["codes_list"][i])
        g.add("wav" + s, wavs[i])  # codes [n_frames, G]
        g.add("frame_hidden" + s, R["hid_list"][i])
    t = R["tk_gen"]
    g.add("talker.prefill.inputs_embeds", t["inputs_embeds"])
    g.add("talker.prefill.attention_mask", t["attention_mask"])
    g.add("talker.trailing_text_hidden", t["trailing_text_hidden"])
    g.add("talker.tts_pad_embed", t["tts_pad_embed"])
    g.add("talker.prefill.position_ids", R["pos"][0].to(torch.int32))
    for i, h in enumerate(R["all"][0]):
        g.add(f"talker.prefill.hidden.{i}", h)  # 0 = input, L = after final norm
    g.add("talker.prefill.logits", R["logits"][0])
    seq = R["tk_res"].sequences
    g.add("talker.codec0_sequence", seq)
    g.add("talker.step_last_hidden", torch.cat([h[:, -1:] for h in R["hid"]], 1))
    g.add("talker.step_logits", torch.cat([l[:, -1:] for l in R["logits"]], 1))
    g.add("talker.step_inputs_embeds", torch.cat(R["emb"][1:], 1))
    g.add("talker.step_position_ids", torch.stack([p[0, :, 0] for p in R["pos"][1:]], 1).to(torch.int32))
    g.add("code_predictor.inputs", torch.stack(R["cp_in"], 1))
    g.add("code_predictor.logits", torch.stack(R["cp_logits"], 1))
    g.add("code_predictor.last_hidden", torch.stack(R["cp_hid"], 1))
    e = eos if eos is not None else tc.codec_eos_token_id
    V = tc.vocab_size
    sup = [i for i in range(V - 1024, V) if i != tc.codec_eos_token_id]
    mg = []
    for b in range(B):
        seen = []
        for s in range(seq.shape[1]):
            x = g.t["talker.step_logits"][b, s].clone()
            for j in set(seen):
                x[j] = x[j] / 1.05 if x[j] > 0 else x[j] * 1.05
            if s < 2:
                x[e] = -float("inf")
            x[sup] = -float("inf")
            top = x.topk(2)
            p = int(top.indices[0])
            if e in seen:
                continue
            assert p == int(seq[b, s]), (name, b, s, p, int(seq[b, s]))
            mg.append(float(top.values[0] - top.values[1]))
            seen.append(p)
    g.meta = {
        "n_limit": n_frames,
        "eos": e,
        "min_margin": {"talker": min(mg), "code_predictor": float(margin(g.t["code_predictor.logits"]).min())},
        "codec0": seq.tolist(),
        "sample_rate": sr,
        "frames": [int(c.shape[0]) for c in R["codes_list"]],
        "wav_len": [len(x) for x in wavs],
        "wav_absmax": [float(np.abs(x).max()) if len(x) else 0 for x in wavs],
        "suppress_tokens": f"[{V - 1024},{V}) minus codec_eos",
        "languages": k.get("languages"),
        "speakers": k.get("speakers"),
        "non_streaming_mode": k.get("non_streaming_mode"),
        "min_new_tokens": 2,
        "repetition_penalty": 1.05,
        **extra_meta,
    }
    g.save()
    print(
        "   ",
        json.dumps({x: g.meta[x] for x in ("min_margin", "codec0", "frames", "wav_len", "wav_absmax")}),
        tuple(t["inputs_embeds"].shape),
        "trailing",
        tuple(t["trailing_text_hidden"].shape),
    )
    return g


w, m = load("custom_voice")
T1 = "Hello, how are you today?"
a = case(
    "cv_streaming_auto_vivian",
    w,
    m,
    lambda **k: w.generate_custom_voice(text=T1, speaker="Vivian", language="Auto", non_streaming_mode=False, **k),
    24,
    text=T1,
)
case(
    "cv_nonstreaming_english_ryan_instruct",
    w,
    m,
    lambda **k: w.generate_custom_voice(
        text=T1, speaker="Ryan", language="English", instruct="Speak slowly and clearly, in a warm tone.", **k
    ),
    20,
    text=T1,
    instruct="Speak slowly and clearly, in a warm tone.",
)
c0 = a.meta["codec0"][0]
kk = next(i for i in range(6, len(c0)) if c0[i] not in c0[:i])
case(
    "cv_streaming_auto_vivian_eos",
    w,
    m,
    lambda **k: w.generate_custom_voice(text=T1, speaker="Vivian", language="Auto", non_streaming_mode=False, **k),
    24,
    text=T1,
    eos_token_id=c0[kk],
)
T3 = "We left at dawn. It was cold! Did you sleep?"
case(
    "cv_streaming_english_three_sentences",
    w,
    m,
    lambda **k: w.generate_custom_voice(text=T3, speaker="Vivian", language="English", non_streaming_mode=False, **k),
    60,
    text=T3,
)
m.tts_model_type = "voice_design"
case(
    "voice_design_english",
    w,
    m,
    lambda **k: w.generate_voice_design(text=T1, instruct="A calm warm voice.", language="English", **k),
    12,
    text=T1,
    instruct="A calm warm voice.",
    note="same weights as custom_voice, run through generate_voice_design (no speaker slot)",
)
# --- speech tokenizer decoder ---
dec = m.speech_tokenizer.model.decoder
gen = torch.Generator().manual_seed(9)
codes = torch.randint(0, dec.config.codebook_size, (1, dec.config.num_quantizers, 40), generator=gen)
g = Gold(f"{OUT}/decoder12hz.safetensors")
with torch.no_grad():
    g.add("codes", codes)
    g.add("wav.full", dec(codes))
    q = dec.quantizer.decode(codes)
    g.add("stage.quantizer", q)
    h = dec.pre_conv(q).transpose(1, 2)
    g.add("stage.pre_conv", h)
    h = dec.pre_transformer(inputs_embeds=h).last_hidden_state
    g.add("stage.pre_transformer", h)
    x = h.permute(0, 2, 1)
    for i, bl in enumerate(dec.upsample):
        for j, b in enumerate(bl):
            x = b(x)
            g.add(f"stage.upsample.{i}.{j}", x)
    for i, b in enumerate(dec.decoder):
        if i == 1:
            y = x
            for j, bb in enumerate(b.block):
                y = bb(y)
                g.add(f"stage.decoder.1.block.{j}", y[..., :400])
        x = b(x)
        g.meta[f"decoder.{i}.len"] = int(x.shape[-1])
        if i in (0, 1, 2, 5, 6):
            g.add(f"stage.decoder.{i}", x[..., :1000])
    for cs, lc in ((10, 4), (16, 8), (1, 25), (300, 25)):
        g.add(f"wav.chunked.{cs}.{lc}", dec.chunked_decode(codes, chunk_size=cs, left_context_size=lc))
    # exact streaming reference: prefix property (causal): full(codes[:t]) == full(codes)[:t*1920]
    p = dec(codes[..., :17])
    g.meta["prefix17_max_diff"] = float((p - g.t["wav.full"][..., : 17 * 1920]).abs().max())
    for cs, lc in ((10, 4), (16, 8), (1, 25), (300, 25)):
        g.meta[f"chunked.{cs}.{lc}_vs_full_max_diff"] = float(
            (g.t[f"wav.chunked.{cs}.{lc}"] - g.t["wav.full"]).abs().max()
        )
g.meta.update(
    {
        "total_upsample": int(dec.total_upsample),
        "absmax": float(g.t["wav.full"].abs().max()),
        "std": float(g.t["wav.full"].std()),
        "lens": {k: int(v.shape[-1]) for k, v in g.t.items() if k.startswith("wav")},
    }
)
g.save()
print("   ", g.meta)
# --- base: x-vector and in-context clone ---
w, m = load("base")
rng = np.random.default_rng(5)
t = np.arange(int(24000 * 1.27)) / 24000
ref = (
    0.4 * np.sin(2 * np.pi * (180 + 90 * t) * t) * (0.6 + 0.4 * np.sin(2 * np.pi * 2.3 * t))
    + 0.03 * rng.standard_normal(t.shape)
).astype(np.float32)
g = Gold(f"{OUT}/base_frontend.safetensors")
g.add("pcm24k", ref)
with torch.no_grad():
    mel = MQ.mel_spectrogram(
        torch.from_numpy(ref)[None],
        n_fft=1024,
        num_mels=128,
        sampling_rate=24000,
        hop_size=256,
        win_size=1024,
        fmin=0,
        fmax=12000,
    )
    g.add("speaker_mel", mel)  # [1,128,T]
    g.add("speaker_embedding", m.extract_speaker_embedding(ref, 24000))
    enc = m.speech_tokenizer.encode(ref, sr=24000)
    g.add("ref_code", enc.audio_codes[0])
g.meta = {
    "mel_frames": int(mel.shape[-1]),
    "code_frames": int(enc.audio_codes[0].shape[0]),
    "uniq_codes": [len(set(enc.audio_codes[0][:, i].tolist())) for i in range(enc.audio_codes[0].shape[1])],
}
g.save()
print("   ", g.meta)
RT = "Reference text for voice cloning."
xv = w.create_voice_clone_prompt((ref, 24000), x_vector_only_mode=True)
icl = w.create_voice_clone_prompt((ref, 24000), ref_text=RT)
case(
    "base_xvector_streaming_auto",
    w,
    m,
    lambda **k: w.generate_voice_clone(text=T1, language="Auto", voice_clone_prompt=xv, **k),
    14,
    text=T1,
)
case(
    "base_xvector_nonstreaming_english",
    w,
    m,
    lambda **k: w.generate_voice_clone(
        text=T1, language="English", voice_clone_prompt=xv, non_streaming_mode=True, **k
    ),
    10,
    text=T1,
)
case(
    "base_icl_streaming_english",
    w,
    m,
    lambda **k: w.generate_voice_clone(text=T1, language="English", voice_clone_prompt=icl, **k),
    14,
    text=T1,
    ref_text=RT,
)
case(
    "base_icl_streaming_shorttext",
    w,
    m,
    lambda **k: w.generate_voice_clone(
        text="Hi", language="Auto", voice_clone_prompt=w.create_voice_clone_prompt((ref, 24000), ref_text="One"), **k
    ),
    8,
    text="Hi",
    ref_text="One",
    note="text shorter than codes: text padded with tts_pad",
)
