"""Goldens for the tiny Qwen3-Omni checkpoint, from transformers 5.23.0 in float32, eager attention, everything greedy (4.57.3 works too: see SPEC).
run:  OMP_NUM_THREADS=2 v5/bin/python dump_qwen3_omni.py [ckpt_dir] [out_dir] [case,case]"""

import sys, json, os, types, warnings, logging
import numpy as np, torch
from tinylib import Gold, margin, CHAT_TEMPLATE
import transformers
from transformers import Qwen3OmniMoeForConditionalGeneration, AutoTokenizer, WhisperFeatureExtractor
from tinylib import Gold, margin, CHAT_TEMPLATE

transformers.logging.set_verbosity_error()
CK = sys.argv[1] if len(sys.argv) > 1 else "tiny/qwen3_omni"
OUT = sys.argv[2] if len(sys.argv) > 2 else CK + "/golden"
os.makedirs(OUT, exist_ok=True)
V5 = transformers.__version__.startswith("5")
m = Qwen3OmniMoeForConditionalGeneration.from_pretrained(CK, dtype=torch.float32, attn_implementation="eager").eval()
tok = AutoTokenizer.from_pretrained(CK)
cfg = m.config
tc = cfg.talker_config
G = tc.num_code_groups
REC = None
LM = getattr(m.thinker.model, "language_model", m.thinker.model)
AT = getattr(m.thinker.model, "audio_tower", None) or m.thinker.audio_tower
VT = getattr(m.thinker.model, "visual", None) or m.thinker.visual


# --- recorders -----------------------------------------------------------------------------------------------------
def wrap(obj, name, fn):
    orig = getattr(obj, name)
    setattr(obj, name, lambda *a, **k: fn(orig, *a, **k))


def rec_thinker_lm(orig, *a, **k):
    o = orig(*a, **k)
    if REC is not None:
        REC["th_emb"].append(k["inputs_embeds"])
        REC["th_pos"].append(k["position_ids"][-3:] if k.get("position_ids") is not None else None)
    return o


wrap(LM, "forward", rec_thinker_lm)


def rec_talker_lm(orig, *a, **k):
    o = orig(*a, **k)
    if REC is not None:
        REC["tk_emb"].append(k["inputs_embeds"])
        REC["tk_pos"].append(k["position_ids"][-3:] if k.get("position_ids") is not None else None)
        REC["tk_hid"].append(o.last_hidden_state)
        REC["tk_all"].append(o.hidden_states)
    return o


wrap(m.talker.model, "forward", rec_talker_lm)


def rec_head(orig, x):
    o = orig(x)
    if REC is not None:
        REC["tk_logits"].append(o)
    return o


wrap(m.talker.codec_head, "forward", rec_head)


def cp_generate(orig, *a, **k):
    for x in ("top_k", "top_p", "temperature"):
        k.pop(x, None)
    k["do_sample"] = False
    k["output_logits"] = True
    r = orig(*a, **k)
    if REC is not None:
        REC["cp_in"].append(k["inputs_embeds"])
        REC["cp_logits"].append(torch.stack(r.logits, 1))
        REC["cp_codes"].append(r.sequences)
        REC["cp_hid"].append([h[-1] for h in r.hidden_states])
    return r


wrap(m.talker.code_predictor, "generate", cp_generate)


def rec_tk_generate(orig, *a, **k):
    if REC is not None:
        REC["tk_gen"] = k
    r = orig(*a, **k)
    if REC is not None:
        REC["tk_res"] = r
    return r


wrap(m.talker, "generate", rec_tk_generate)


def rec_th_generate(orig, *a, **k):
    r = orig(*a, **{**k, "output_logits": True})
    if REC is not None:
        REC["th_res"] = r
    return r


wrap(m.thinker, "generate", rec_th_generate)


def rec_cd(orig, codes, **k):
    o = orig(codes, **k)
    if REC is not None:
        REC["codes"] = codes
        REC["wav"] = o
    return o


wrap(m.code2wav, "chunked_decode", rec_cd)
gates = []
for l in list(LM.layers) + list(m.talker.model.layers):

    def hook(mod, i, o):
        lg = o[0] if isinstance(o, tuple) else o
        p = lg.float().softmax(-1).sort(-1, descending=True).values
        if REC is not None:
            gates.append(float(((p[:, 1] - p[:, 2]) / (p[:, 0] + p[:, 1])).min()))

    l.mlp.gate.register_forward_hook(hook)


def run_case(
    name, messages, speaker="Ethan", n_text=10, n_frames=20, extra=None, gen_extra=None, text=None, thinker_eos=None
):
    global REC
    import collections

    REC = collections.defaultdict(list)
    gates.clear()
    prompt = (
        text
        if text is not None
        else tok.apply_chat_template(messages, chat_template=CHAT_TEMPLATE, tokenize=False, add_generation_prompt=True)
    )
    inp = tok(prompt, return_tensors="pt")
    input_ids = inp["input_ids"]
    kw = dict(extra or {})
    r = m.generate(
        input_ids=input_ids,
        attention_mask=torch.ones_like(input_ids),
        speaker=speaker,
        thinker_max_new_tokens=n_text,
        thinker_do_sample=False,
        thinker_eos_token_id=cfg.im_end_token_id if thinker_eos is None else thinker_eos,
        talker_max_new_tokens=n_frames,
        talker_do_sample=False,
        **kw,
        **(gen_extra or {}),
    )
    R = REC
    REC = None
    g = Gold(f"{OUT}/{name}.safetensors")
    tr = R["th_res"]
    g.add("input_ids", input_ids)
    g.add("thinker.sequences", tr.sequences)
    for k, v in (extra or {}).items():
        if torch.is_tensor(v):
            g.add("in." + k, v)
    g.add("thinker.prefill.inputs_embeds", R["th_emb"][0])
    if R["th_pos"][0] is not None:
        g.add("thinker.prefill.position_ids", R["th_pos"][0].to(torch.int32))
    for i, h in enumerate(tr.hidden_states[0]):
        g.add(f"thinker.prefill.hidden.{i}", h)  # 0 = input embeds, L = after final norm
    g.add("thinker.hidden0.all", torch.cat([h[0] for h in tr.hidden_states], 1))
    g.add("thinker.accept_hidden.all", torch.cat([h[tc.accept_hidden_layer] for h in tr.hidden_states], 1))
    with torch.no_grad():
        g.add("thinker.prefill.logits", m.thinker.lm_head(tr.hidden_states[0][-1]))
    g.add("thinker.step_logits", torch.stack(tr.logits, 1))  # [1, n_new, V]
    if len(R["th_pos"]) > 1 and R["th_pos"][1] is not None:
        g.add("thinker.decode.position_ids", torch.stack([p[:, 0, 0] for p in R["th_pos"][1:]], 1).to(torch.int32))
    tg = R["tk_gen"]
    g.add("talker.prefill.inputs_embeds", tg["inputs_embeds"])
    g.add("talker.prefill.input_ids", tg["talker_input_ids"])
    g.add("talker.trailing_text_hidden", tg["trailing_text_hidden"])
    g.add("talker.tts_pad_embed", tg["tts_pad_embed"])
    if R["tk_pos"][0] is not None:
        g.add("talker.prefill.position_ids", R["tk_pos"][0].to(torch.int32))
    if R["tk_all"][0] is not None:
        for i, h in enumerate(R["tk_all"][0]):
            g.add(f"talker.prefill.hidden.{i}", h)
    g.add("talker.prefill.logits", R["tk_logits"][0])
    seq = R["tk_res"].sequences
    g.add("talker.codec0_sequence", seq)  # incl. final token with no frame
    g.add(
        "talker.step_last_hidden", torch.cat([h[:, -1:] for h in R["tk_hid"]], 1)
    )  # [1, n_steps, H]; step 0 = prefill
    g.add(
        "talker.step_logits", torch.cat([l[:, -1:] for l in R["tk_logits"]], 1)
    )  # raw codec_head logits, before penalty/suppression
    if len(R["tk_emb"]) > 1:
        g.add("talker.step_inputs_embeds", torch.cat(R["tk_emb"][1:], 1))  # [1, n_frames, H]
        g.add("talker.step_position_ids", torch.stack([p[:, 0, 0] for p in R["tk_pos"][1:]], 1).to(torch.int32))
    g.add("code_predictor.inputs", torch.stack(R["cp_in"], 1)[0])  # [n_frames, 2, H]
    g.add("code_predictor.logits", torch.stack(R["cp_logits"], 1)[0])  # [n_frames, G-1, V]
    g.add("code_predictor.last_hidden", torch.stack([torch.cat([h[:, -1:] for h in hs], 1)[0] for hs in R["cp_hid"]]))
    g.add("codes", R["codes"])  # [1, G, n_frames]
    g.add("wav", R["wav"])
    # margins of every greedy decision
    tl = g.t["talker.step_logits"][0].clone()
    V = tl.shape[-1]
    sup = [i for i in range(V - 1024, V) if i != tc.codec_eos_token_id]
    eos = (gen_extra or {}).get("talker_eos_token_id", tc.codec_eos_token_id)
    seen, mg, picked = [], [], []
    for s in range(tl.shape[0]):
        x = tl[s].clone()
        for t in set(seen):
            x[t] = x[t] / 1.05 if x[t] > 0 else x[t] * 1.05
        x[sup] = -float("inf")
        top = x.topk(2)
        mg.append(float(top.values[0] - top.values[1]))
        picked.append(int(top.indices[0]))
        seen.append(picked[-1])
    assert picked == seq[0].tolist(), (picked, seq[0].tolist())
    g.meta = {
        "prompt": prompt,
        "speaker": speaker,
        "n_text": n_text,
        "n_frames_limit": n_frames,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "dtype": "float32",
        "talker_eos": eos,
        "thinker_eos": cfg.im_end_token_id if thinker_eos is None else thinker_eos,
        "repetition_penalty": 1.05,
        "min_margin": {
            "thinker": float(margin(g.t["thinker.step_logits"]).min()),
            "talker": min(mg),
            "code_predictor": float(margin(g.t["code_predictor.logits"]).min()),
            "router_prob_gap": min(gates),
        },
        "generated_text": tok.decode(tr.sequences[0, input_ids.shape[1] :]),
        "codec0": picked,
        "wav_samples": int(R["wav"].shape[-1]),
        "wav_absmax": float(R["wav"].abs().max()),
        "clamped_fraction": float((R["wav"].abs() >= 1).float().mean()),
    }
    g.save()
    print(
        "  ",
        json.dumps(
            {
                k: g.meta[k]
                for k in ("min_margin", "codec0", "wav_samples", "wav_absmax", "clamped_fraction", "generated_text")
            },
            ensure_ascii=False,
        ),
    )
    print(
        "   thinker new",
        tr.sequences[0, input_ids.shape[1] :].tolist(),
        "cp uniq",
        [len(set(g.t["codes"][0, i].tolist())) for i in range(G)],
    )
    return g


S = {"role": "system", "content": "You are a helpful assistant."}
cases = {
    "text_ethan": dict(
        messages=[S, {"role": "user", "content": "Hello, how are you today?"}], speaker="Ethan", n_text=10, n_frames=24
    ),
}
if __name__ == "__main__":
    which = sys.argv[3].split(",") if len(sys.argv) > 3 else None
    for n, c in cases.items():
        if which is None or n in which:
            g = run_case(n, **c)
    # early stop: same as text_ethan, but the talker's eos is the 8th codec-0 token it produces -> 7 frames
    if which is None or "text_ethan_eos" in which:
        g0 = json.load(open(f"{OUT}/text_ethan.json"))["meta"]["codec0"]
        k = next(i for i in range(5, len(g0)) if g0[i] not in g0[:i])
        run_case("text_ethan_eos", **{**cases["text_ethan"], "gen_extra": {"talker_eos_token_id": g0[k]}})
    # the thinker itself ends (its eos = the 6th token it produces): the final token is never embedded, the trailing text is tokens 1..4 + tts_eos
    if which is None or "text_ethan_thinker_eos" in which:
        from safetensors.torch import load_file

        t = load_file(f"{OUT}/text_ethan.safetensors")
        new = t["thinker.sequences"][0, t["input_ids"].shape[1] :].tolist()
        k = next(i for i in range(5, len(new)) if new[i] not in new[:i])
        run_case("text_ethan_thinker_eos", **{**cases["text_ethan"], "n_frames": 10, "thinker_eos": new[k]})
    # --- code2wav: whole, chunked, stages ---
    if which is None or "code2wav" in which:
        gen = torch.Generator().manual_seed(7)
        codes = torch.randint(
            0, cfg.code2wav_config.codebook_size, (1, cfg.code2wav_config.num_quantizers, 40), generator=gen
        )
        g = Gold(f"{OUT}/code2wav.safetensors")
        c2w = m.code2wav
        with torch.no_grad():
            g.add("codes", codes)
            g.add("wav.full", c2w(codes))
            h = c2w.code_embedding(codes + c2w.code_offset).mean(1)
            g.add("stage.embed_mean", h)
            h = c2w.pre_transformer(inputs_embeds=h).last_hidden_state
            g.add("stage.pre_transformer", h)
            x = h.permute(0, 2, 1)
            for i, bl in enumerate(c2w.upsample):
                for j, b in enumerate(bl):
                    x = b(x)
                    g.add(f"stage.upsample.{i}.{j}", x)
            for i, b in enumerate(c2w.decoder):
                if type(b).__name__.endswith("DecoderBlock"):
                    y = x
                    for j, bb in enumerate(b.block):
                        y = bb(y)
                        if i == 1:
                            g.add(f"stage.decoder.{i}.block.{j}", y[..., :400])
                x = b(x)
                if i in (0, 1, 2, 5, 6):
                    g.add(f"stage.decoder.{i}", x[..., :1000])
                g.meta[f"decoder.{i}.len"] = int(x.shape[-1])
            for cs, lc in ((10, 4), (16, 8), (300, 25)):
                g.add(f"wav.chunked.{cs}.{lc}", c2w.chunked_decode(codes, chunk_size=cs, left_context_size=lc))
            g.add("wav.full.first12", c2w(codes[..., :12]))
        g.meta.update(
            {
                "total_upsample": int(c2w.total_upsample),
                "note": "len(full)=1920*T-555; every chunk loses 555 samples",
                "absmax": float(g.t["wav.full"].abs().max()),
                "std": float(g.t["wav.full"].std()),
                "clamped": float((g.t["wav.full"].abs() >= 1).float().mean()),
                "lens": {k: int(v.shape[-1]) for k, v in g.t.items() if k.startswith("wav")},
            }
        )
        g.save()
        print("  ", g.meta)
    # --- audio tower ---
    if which is None or "audio" in which or "audio_tower" in which:
        fe = WhisperFeatureExtractor.from_pretrained(CK)
        rng = np.random.default_rng(3)
        t = np.arange(int(16000 * 6.37)) / 16000
        wav = (
            0.4 * np.sin(2 * np.pi * (220 + 60 * t) * t) * (0.6 + 0.4 * np.sin(2 * np.pi * 1.7 * t))
            + 0.02 * rng.standard_normal(t.shape)
        ).astype(np.float32)
        f = fe(
            wav, sampling_rate=16000, padding=True, truncation=False, return_attention_mask=True, return_tensors="pt"
        )
        feats, mask = f["input_features"], f["attention_mask"]
        g = Gold(f"{OUT}/audio_tower.safetensors")
        g.add("pcm16k", wav)
        g.add("input_features", feats)
        g.add("feature_attention_mask", mask)
        at = AT
        with torch.no_grad():
            ml = mask.sum(-1)
            x = feats.permute(0, 2, 1)[mask.bool()].permute(1, 0)
            o = at(x, feature_lens=ml)
            g.add("audio_embeds", o.last_hidden_state)
            n2 = ml - 137
            x2 = torch.cat([x, x[:, 40 : 40 + int(n2)]], 1)  # a batch of two clips of different length
            g.meta["batch2"] = (
                "input = cat(x, x[:, 40:40+n2]) over time with x = the unpadded features, n2 = len(x) - 137"
            )
            g.add("batch2.lens", torch.cat([ml, n2]))
            g.add("batch2.audio_embeds", at(x2, feature_lens=torch.cat([ml, n2])).last_hidden_state)
        na = o.last_hidden_state.shape[0]
        g.meta |= {"mel_frames": int(ml), "audio_tokens": int(na), "transformers": transformers.__version__}
        g.save()
        print("  ", g.meta)
        if which is None or "audio" in which:
            txt = (
                "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|audio_start|>"
                + "<|audio_pad|>" * na
                + "<|audio_end|>What do you hear in this audio?<|im_end|>\n<|im_start|>assistant\n"
            )
            run_case(
                "audio_ethan",
                None,
                text=txt,
                extra={"input_features": feats, "feature_attention_mask": mask},
                n_text=8,
                n_frames=10,
            )
    # --- vision tower ---
    if which is None or "vision" in which:
        gen = torch.Generator().manual_seed(11)
        vc = cfg.thinker_config.vision_config
        grid = torch.tensor([[1, 4, 6]])
        gridv = torch.tensor([[2, 4, 4]])
        pd = vc.in_channels * vc.temporal_patch_size * vc.patch_size**2
        pix = torch.randn(int(grid.prod(1).sum()), pd, generator=gen) * 0.6
        pixv = torch.randn(int(gridv.prod(1).sum()), pd, generator=gen) * 0.6
        g = Gold(f"{OUT}/vision_tower.safetensors")
        with torch.no_grad():
            for nm, p, gr in (
                ("image", pix, grid),
                ("video", pixv, gridv),
                ("two", torch.cat([pix, pixv]), torch.cat([grid, gridv])),
            ):
                o = VT(p, grid_thw=gr)
                emb, deep = (o.pooler_output, o.deepstack_features) if not isinstance(o, tuple) else o
                if nm != "two":
                    g.add(f"{nm}.pixel_values", p)
                g.add(f"{nm}.grid_thw", gr)
                g.add(f"{nm}.embeds", emb)
                for i, dd in enumerate(deep):
                    g.add(f"{nm}.deepstack.{i}", dd)
        g.save()
        ni, nv = 6, 8
        txt = (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|vision_start|>"
            + "<|image_pad|>" * ni
            + "<|vision_end|>What is in the image?<|im_end|>\n<|im_start|>assistant\n"
        )
        run_case(
            "image_ethan", None, text=txt, extra={"pixel_values": pix, "image_grid_thw": grid}, n_text=6, n_frames=8
        )
        txt = (
            "<|im_start|>user\n<|vision_start|>"
            + "<|video_pad|>" * nv
            + "<|vision_end|>Describe the video.<|im_end|>\n<|im_start|>assistant\n"
        )
        run_case(
            "video_ethan",
            None,
            text=txt,
            extra={"pixel_values_videos": pixv, "video_grid_thw": gridv, "video_second_per_grid": torch.tensor([1.0])},
            n_text=6,
            n_frames=8,
        )
