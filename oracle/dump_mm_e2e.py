"""End-to-end multimodal goldens on a tiny checkpoint (kind omni_generate): media files -> the checkpoint's own processor -> thinker + talker + code2wav, greedy, f32. Uses dump_qwen3_omni.run_case unchanged.
run:  HF_HUB_OFFLINE=1 OMP_NUM_THREADS=2 v5mm/bin/python dump_mm_e2e.py CKPT_DIR OUT_DIR CASES.py [case,case]     then label_cases.py OUT_DIR"""

import sys, os, json, warnings

warnings.filterwarnings("ignore")
CK, OUT, CASES = sys.argv[1:4]
WHICH = sys.argv[4].split(",") if len(sys.argv) > 4 else None
sys.argv = [sys.argv[0], CK, OUT]
import numpy as np, torch, soundfile as sf
from PIL import Image
from mmlib import speechlike, picture, patchify_np, logmel_np, audio_tokens
import dump_qwen3_omni as D
from transformers import AutoProcessor

pr = AutoProcessor.from_pretrained(CK)
M = f"{OUT}/media"
os.makedirs(M, exist_ok=True)
m = D.m
# transformers 5.23.0 stops with AttributeError (Qwen3OmniMoeTalkerConfig has no audio_config) when a prompt has audio AND an image or video and speech is wanted: get_rope_index asks the TALKER's config
# for audio_config.n_window. 4.57.3 has the constant 50 there. Give it the thinker's value, which is what is meant.
m.talker.config.audio_config = m.thinker.config.audio_config
POS = {"th": [], "tk": []}


def rec(key):
    def f(orig, *a, **k):
        if k.get("position_ids") is not None:
            POS[key].append(k["position_ids"][-3:].float().cpu())
        return orig(*a, **k)

    return f


D.wrap(D.LM, "forward", rec("th"))
D.wrap(m.talker.model, "forward", rec("tk"))


def make(spec):
    """media files of a case; PCM16 mono 16 kHz wav and PNG whose sides are multiples of 32, so neither resampling nor resizing happens"""
    kind, name, *a = spec
    p = f"{M}/{name}"
    if kind == "audio":
        sec, seed, f0 = a
        sf.write(p + ".wav", speechlike(sec, 16000, seed, f0), 16000, subtype="PCM_16")
        return sf.read(p + ".wav", dtype="float32")[0]
    if kind == "image":
        h, w, seed = a
        Image.fromarray(picture(h, w, seed)).save(p + ".png")
        return np.array(Image.open(p + ".png"))
    h, w, n, seed = a
    out = []
    for i in range(n):
        f = picture(h, w, seed, noise=False)
        x = (3 + 7 * i) % (w - 14)
        f[8 + 2 * i : 20 + 2 * i, x : x + 12] = [230, 40 + 30 * i, 70]
        Image.fromarray(f).save(f"{p}_f{i}.png")
        out.append(np.array(Image.open(f"{p}_f{i}.png")))
    return np.stack(out)


def run(name, messages, speaker, n_text, n_frames, fps=None, av=None, video_size=None):
    files, im, vi, au, src, tm = [], [], [], [], [], []
    for msg in messages:
        if isinstance(msg["content"], str):
            tm.append(msg)
            continue
        c = []
        for p in msg["content"]:
            if isinstance(p, str):
                c.append({"type": "text", "text": p})
                continue
            x = make(p)
            c.append({"type": p[0]})
            files.append(
                {
                    "type": p[0],
                    "file": f"media/{p[1]}" + (".wav" if p[0] == "audio" else ".png" if p[0] == "image" else "_f*.png"),
                }
            )
            if p[0] == "audio":
                au.append(x)
                src.append(None)
            elif p[0] == "image":
                im.append(Image.fromarray(x))
            else:
                vi.append(x)
                if av:
                    au.append(make(av))
                    src.append(len(vi) - 1)
                    files.append({"type": "audio of the video", "file": f"media/{av[1]}.wav"})
        tm.append({**msg, "content": c})
    text = pr.tokenizer.apply_chat_template(
        tm, chat_template=D.CHAT_TEMPLATE, tokenize=False, add_generation_prompt=True
    )
    kw = {}
    if vi:
        kw["videos"] = vi
        kw["videos_kwargs"] = {**({"fps": fps} if fps else {}), **({"size": video_size} if video_size else {})}
    if av:
        kw["load_audio_from_video"] = True
        kw["audio_from_video_indices"] = src
    o = pr(text=[text], images=im or None, audio=au or None, return_tensors="pt", **kw)
    ids = o["input_ids"]
    full = pr.tokenizer.decode(ids[0])
    assert D.tok(full)["input_ids"] == ids[0].tolist()
    extra = {
        k: (torch.as_tensor(o[k], dtype=torch.float32) if k == "video_second_per_grid" else o[k])
        for k in (
            "input_features",
            "feature_attention_mask",
            "pixel_values",
            "image_grid_thw",
            "pixel_values_videos",
            "video_grid_thw",
            "video_second_per_grid",
        )
        if k in o
    }
    # independent checks of the inputs
    if au:
        mx = max(map(len, au))
        for i, a in enumerate(au):
            L = int(o["feature_attention_mask"][i].sum())
            assert L == (len(a) // 160 if len(a) == mx else min(-(-len(a) // 160), mx // 160))
            d = np.abs(logmel_np(np.pad(a, (0, mx - len(a))))[:, :L] - o["input_features"][i, :, :L].numpy()).max()
            assert d < 1e-4, d
        assert int((ids == pr.audio_token_id).sum()) == sum(
            audio_tokens(int(x)) for x in o["feature_attention_mask"].sum(1)
        )
    if im:
        assert (
            np.abs(np.concatenate([patchify_np(np.array(x)[None])[0] for x in im]) - o["pixel_values"].numpy()).max()
            < 1e-6
        )
    if vi:
        assert (
            np.abs(np.concatenate([patchify_np(x)[0] for x in vi]) - o["pixel_values_videos"].numpy()).max() < 1e-6
        ), "video was resized"
    for v in POS.values():
        v.clear()
    g = D.run_case(
        name,
        None,
        text=full,
        speaker=speaker,
        extra=extra,
        n_text=n_text,
        n_frames=n_frames,
        gen_extra={"use_audio_in_video": True} if av else None,
    )
    frac = lambda t: not torch.equal(t, t.round())
    for key, nm in (("th", "thinker"), ("tk", "talker")):
        pre, dec = POS[key][0], POS[key][1:]
        dec = torch.stack([p[:, 0, 0] for p in dec], 1)
        if frac(pre) or frac(dec):
            g.add(f"{nm}.prefill.position_ids_f32", pre)
            g.add(f"{nm}.{'decode' if key == 'th' else 'step'}_position_ids_f32".replace("decode_", "decode."), dec)
    for k in [k for k in g.t if k.startswith(("thinker.prefill.logits", "talker.prefill.logits"))]:
        del g.t[k]  # last row = step_logits[:, 0]
    if g.t["input_ids"].shape[1] > ns.get(
        "hidden_up_to", 300
    ):  # long prompts: keep only the thinker's last hidden state
        last = f"thinker.prefill.hidden.{m.thinker.config.text_config.num_hidden_layers}"
        for k in [k for k in g.t if ".prefill.hidden." in k and k != last]:
            del g.t[k]
    g.meta |= {
        "reference_patch": "talker.config.audio_config = thinker.config.audio_config (5.23.0 crashes without it)"
        if au and (im or vi)
        else None,
        "media": files,
        "prompt_before_expansion": text,
        "use_audio_in_video": bool(av),
        "fps_given_to_the_processor": fps,
        "video_min_max_pixels": list(video_size.values()) if video_size else None,
        "media_order": "input_features rows are in the order of the audio placeholders; the audio of a video stands where the video stands",
    }
    g.save()
    return g


ns = {}
exec(open(CASES).read(), ns)
if __name__ == "__main__":
    for n, c in ns["cases"].items():
        if WHICH is None or n in WHICH:
            run(n, **c)
