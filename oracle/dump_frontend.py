"""Front-end goldens (kinds frontend_audio, frontend_image, frontend_video, frontend_chat, frontend_table), from transformers 5.23.0's Qwen3-Omni processor and qwen-omni-utils 0.0.9.
run:  HF_HUB_OFFLINE=1 OMP_NUM_THREADS=2 v5mm/bin/python dump_frontend.py REAL_PROCESSOR_DIR REAL_CONFIG_JSON FRONTEND_DIR [audio,image,video,chat,table]
REAL_PROCESSOR_DIR: mmlib.make_processor_dir(real tokenizer folder, out, text of the real chat template).  FRONTEND_DIR/media must exist (make_media.py)."""

import sys, os, json, hashlib, types, warnings

warnings.filterwarnings("ignore")
import numpy as np, torch
from mmlib import *
from tinylib import Gold
import transformers, PIL, torchvision, librosa, soxr, scipy.signal, torchaudio, soundfile as sf
from PIL import Image, ImageOps
from transformers import AutoProcessor

transformers.logging.set_verbosity_error()
PD, CFG, OUT = sys.argv[1:4]
WHICH = sys.argv[4].split(",") if len(sys.argv) > 4 else ["audio", "image", "video", "chat", "table"]
OV = {}
os.environ.get("FRONT_CASES") and exec(
    open(os.environ["FRONT_CASES"]).read(), OV
)  # other inputs (lists below are the defaults)
M = f"{OUT}/media"
pr = AutoProcessor.from_pretrained(PD)
fe = pr.feature_extractor
ip = pr.image_processor
VERS = {
    "transformers": transformers.__version__,
    "torch": torch.__version__,
    "torchvision": torchvision.__version__,
    "pillow": PIL.__version__,
    "librosa": librosa.__version__,
    "soxr": soxr.__version__,
    "qwen_omni_utils": "0.0.9",
}
sha = lambda a: hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()


def save(g, kind):
    g.meta["versions"] = VERS
    g.save()
    p = g.path.replace(".safetensors", ".json")
    m = json.load(open(p))
    json.dump({"case": {"kind": kind, "checkpoint": "."}, **m}, open(p, "w"), indent=1, ensure_ascii=False)


def fe_run(pcms):
    return fe(
        pcms, sampling_rate=16000, padding=True, truncation=False, return_attention_mask=True, return_tensors="pt"
    )


# --- a. audio -------------------------------------------------------------------------------------------------------------
def load16k(f):
    """= qwen_omni_utils.process_audio_info for a file: librosa.load(sr=16000): soundfile f32, mean of channels, soxr 'soxr_hq'"""
    from qwen_omni_utils import process_audio_info

    return process_audio_info([{"role": "user", "content": [{"type": "audio", "audio": f"{M}/{f}"}]}], False)[0]


def others(f):
    """other good resamplers on the same mono signal"""
    x, sr = sf.read(f"{M}/{f}", dtype="float32")
    x = x.mean(1) if x.ndim > 1 else x
    if sr == 16000:
        return {}
    gcd = np.gcd(sr, 16000)
    t = torch.from_numpy(x)
    n = int(np.ceil(len(x) * 16000 / sr))
    fix = lambda y: np.pad(y[:n], (0, max(0, n - len(y)))).astype(np.float32)
    return {
        "soxr_vhq": fix(soxr.resample(x, sr, 16000, quality="VHQ")),
        "scipy_resample_poly": fix(scipy.signal.resample_poly(x.astype(np.float64), 16000 // gcd, sr // gcd)),
        "torchaudio_default_width6": fix(torchaudio.functional.resample(t, sr, 16000).numpy()),
        "torchaudio_width64_kaiser": fix(
            torchaudio.functional.resample(
                t,
                sr,
                16000,
                lowpass_filter_width=64,
                rolloff=0.9475937167399596,
                resampling_method="sinc_interp_kaiser",
                beta=14.769656459379492,
            ).numpy()
        ),
        "linear_BAD": fix(np.interp(np.arange(n) * sr / 16000, np.arange(len(x)), x)),
    }


AUD = OV.get("AUD") or [
    "a8k_pcm16_0p3s",
    "a16k_pcm16_2p513s",
    "a16k_stereo_pcm16_1s",
    "a24k_pcm24_1p7s",
    "a44k1_stereo_pcm16_3p1s",
    "a48k_pcm16_9p03s",
    "a16k_float_0p05s",
    "a11k025_u8_0p7s",
    "a16k_silence_0p5s",
    "a16k_pcm16_201samples",
]
if "audio" in WHICH:
    centre = mel_to_hz(np.linspace(0, hz_to_mel(8000), 130))[1:-1]
    summary = {}
    for n in AUD:
        f = n + ".wav"
        i = sf.info(f"{M}/{f}")
        y = load16k(f)
        o = fe_run([y])
        F, L = o["input_features"], int(o["attention_mask"].sum())
        g = Gold(f"{OUT}/frontend_audio_{n}.safetensors")
        assert F.shape[-1] == L == len(y) // 160, (F.shape, L, len(y))
        nt = int(pr._get_num_audio_tokens(len(y)))
        assert nt == audio_tokens(L)
        d = np.abs(logmel_np(y) - F[0].numpy()).max()
        g.add("pcm16k", y)
        g.add("input_features", F)
        x, _ = sf.read(f"{M}/{f}", dtype="float32")
        x = x.mean(1) if x.ndim > 1 else x
        rs = {}
        for k, z in others(f).items():
            fz = fe_run([z])["input_features"][0].numpy()
            e = np.abs(fz - F[0].numpy())
            lo = centre < 0.9 * min(8000, i.samplerate / 2)
            rs[k] = {
                "pcm_max": float(np.abs(z - y).max()),
                "pcm_rms": float(np.sqrt(np.mean((z - y) ** 2))),
                "logmel_max_below_0.9_nyquist": float(e[lo].max()),
                "logmel_mean_below_0.9_nyquist": float(e[lo].mean()),
                "logmel_p99_below_0.9_nyquist": float(np.quantile(e[lo], 0.99)),
                "logmel_mean_above": float(e[~lo].mean()) if (~lo).any() else 0,
            }
        g.meta = {
            "file": f"media/{f}",
            "native": {"rate": i.samplerate, "channels": i.channels, "subtype": i.subtype, "samples": i.frames},
            "mono_native_f32_sha256": sha(x.astype(np.float32)),
            "samples_16k": len(y),
            "mel_frames": L,
            "audio_tokens": nt,
            "resampler": "none (already 16 kHz)"
            if i.samplerate == 16000
            else "soxr HQ (librosa.load default), ceil(n*16000/rate) samples",
            "logmel_f64_recomputation_max_diff": float(d),
            "other_resamplers_vs_golden": rs,
        }
        save(g, "frontend_audio")
        summary[n] = (L, nt, float(d))
        print("   ", n, L, nt, "recomputed diff %.2g" % d)
        [print("       ", k, {a: float("%.2g" % b) for a, b in v.items()}) for k, v in rs.items()]
    # two clips in one request: padded with zeros to the longest BEFORE the STFT
    fa, na, fb = OV.get("BATCH") or ("a16k_stereo_pcm16_1s", 15370, "a16k_pcm16_2p513s")
    a, b = load16k(fa + ".wav")[:na], load16k(fb + ".wav")
    o = fe_run([a, b])
    F, m = o["input_features"], o["attention_mask"]
    L = m.sum(1).tolist()
    solo = fe_run([a])["input_features"]
    pad = np.concatenate([a, np.zeros(len(b) - len(a), np.float32)])
    re = logmel_np(pad)[:, : L[0]]
    g = Gold(f"{OUT}/frontend_audio_batch2.safetensors")
    g.add("input_features", F)
    g.add("feature_attention_mask", m)
    g.add("alone.0.input_features", solo)
    g.meta = {
        "files": [f"media/{fa}.wav (first {na} samples of its mono 16 kHz signal)", f"media/{fb}.wav"],
        "samples_16k": [len(a), len(b)],
        "mel_frames_in_batch": L,
        "audio_tokens_in_batch": [audio_tokens(x) for x in L],
        "mel_frames_alone": [len(a) // 160, len(b) // 160],
        "audio_tokens_alone": [audio_tokens(len(a) // 160), audio_tokens(len(b) // 160)],
        "first_clip_batch_vs_alone_max_diff": float((F[0, :, : solo.shape[-1]] - solo[0]).abs().max()),
        "frames_that_differ": (F[0, :, : solo.shape[-1]] - solo[0]).abs().amax(0).gt(1e-4).nonzero().flatten().tolist(),
        "recomputed_zero_padded_max_diff": float(np.abs(re - F[0, :, : L[0]].numpy()).max()),
        "rule": "pad all clips of one processor call with zeros to the longest, then mel; valid frames of a clip = ceil(n/160) if it is shorter than the longest, floor(n/160) if it is the longest (the longest also sets the cut for all)",
    }
    save(g, "frontend_audio")
    print("   ", {k: v for k, v in g.meta.items() if k not in ("versions", "rule")})
    for n in (200, 201):
        try:
            r = fe_run([np.zeros(n, np.float32)])["input_features"].shape
        except Exception as e:
            r = f"{type(e).__name__}: {str(e)[:80]}"
        print("   ", n, "samples ->", r)


# --- b. images --------------------------------------------------------------------------------------------------------------
def open_rgb(f):
    """PIL decode, EXIF orientation applied, alpha composited on white, RGB"""
    im = ImageOps.exif_transpose(Image.open(f))
    from transformers.image_transforms import convert_to_rgb

    return convert_to_rgb(im, return_numpy=True)


IMG = OV.get("IMG") or [
    "i_1x1.png",
    "i_28x28.png",
    "i_w33_h200.png",
    "i_w200_h33.png",
    "i_w112_h80.png",
    "i_w640_h480.png",
    "i_w650_h470.png",
    "i_w1920_h1080.jpg",
    "i_w700_h9.png",
    "i_rgba_w100_h70.png",
    "i_gray_w80_h80.png",
    "i_palette_trns_w96_h64.png",
    "i_w120_h80.jpg",
    "i_exif6_w120_h80.jpg",
    "i_gray16_w64_h64.png",
]


def one_image(f, tag="", size=None):
    rgb = open_rgb(f"{M}/{f}")
    h, w = rgb.shape[:2]
    kw = {"size": size} if size else {}
    mn, mx = (size["shortest_edge"], size["longest_edge"]) if size else (3136, 12845056)
    o = pr(
        text=["<|vision_start|><|image_pad|><|vision_end|>"],
        images=[Image.fromarray(rgb)],
        images_kwargs=kw,
        return_tensors="pt",
    )
    pv, grid = o["pixel_values"], o["image_grid_thw"]
    nt = int((o["input_ids"] == pr.image_token_id).sum())
    rh, rw = int(grid[0, 1]) * 16, int(grid[0, 2]) * 16
    assert (rh, rw) == smart_resize_np(h, w, 32, mn, mx)
    # the resized u8 picture, back from pixel_values (exact: v*127.5+127.5)
    x = pv.numpy().reshape(1, rh // 32, rw // 32, 2, 2, 3, 2, 16, 16)
    assert np.array_equal(x[..., 0, :, :], x[..., 1, :, :])
    q = (
        np.rint(x[:, :, :, :, :, :, 0] * 127.5 + 127.5)
        .astype(np.uint8)[0]
        .transpose(0, 2, 5, 1, 3, 6, 4)
        .reshape(rh, rw, 3)
    )
    g = Gold(f"{OUT}/frontend_image_{f.rsplit('.', 1)[0]}{tag}.safetensors")
    pil = np.array(Image.fromarray(rgb).resize((rw, rh), Image.BICUBIC))
    cmp = {}
    for k, a in (
        ("pillow_bicubic", pil),
        *(
            (f"numpy_{m}", resize_u8(rgb, rh, rw, m))
            for m in (("torch", "pil", "f64", "f32once") if rh * rw < 400000 else ("torch", "pil"))
        ),
    ):
        dd = np.abs(a.astype(int) - q.astype(int))
        cmp[k] = {"max": int(dd.max()), "share_different": float((dd > 0).mean())}
    me, gr = patchify_np(q[None])
    pd = float(np.abs(me - pv.numpy()).max())
    assert gr == tuple(grid[0].tolist()) and pd < 1e-6
    g.add("image_grid_thw", grid)
    step = max(1, -(-pv.shape[0] // OV.get("ROWS", 64)))
    g.add("pixel_values.row_index", torch.arange(0, pv.shape[0], step))
    g.add("pixel_values.rows", pv[::step])
    s = 1 if rh * rw <= OV.get("RGB_MAX", 70000) else -(-max(rh, rw) // (200 if "RGB_MAX" not in OV else 100))
    g.add("resized_rgb", torch.from_numpy(q[::s, ::s].copy()))
    from qwen_omni_utils import fetch_image

    try:
        u14 = fetch_image({"image": f"{M}/{f}"})
        two = pr.image_processor([u14], return_tensors="pt")["image_grid_thw"][0].tolist()
        off = {
            "utils_size_hw_patch14": list(u14.size[::-1]),
            "then_processor_grid_thw": two,
            "tokens": two[1] * two[2] // 4,
            "utils_size_hw_patch16": list(fetch_image({"image": f"{M}/{f}"}, image_patch_size=16).size[::-1]),
        }
    except Exception as e:
        off = f"{type(e).__name__}: {e}"
    g.meta = {
        "file": f"media/{f}",
        "decoded_hw": [h, w],
        "decoded_rgb_sha256": sha(rgb),
        "min_pixels": mn,
        "max_pixels": mx,
        "factor": 32,
        "resized_hw": [rh, rw],
        "resized_rgb_sha256": sha(q),
        "resized_rgb_mean": q.reshape(-1, 3).astype(np.float64).mean(0).tolist(),
        "resized_rgb_stride": s,
        "pixel_values_shape": list(pv.shape),
        "pixel_values_mean": float(pv.double().mean()),
        "pixel_values_abs_sum": float(pv.double().abs().sum()),
        "image_tokens": nt,
        "resize_compared_with_golden": cmp,
        "patchify_recomputed_max_diff": pd,
        "official_utils_two_step": off,
    }
    if "gray16" in f:
        g.meta["advisory"] = (
            "Pillow clips 16-bit grey to 255 (almost white); other decoders keep the high byte. Not a behaviour to insist on."
        )
    if "exif" in f:
        g.meta["advisory"] = "upright picture, as transformers' own loaders give; qwen_omni_utils ignores the EXIF tag"
    if "rgba" in f or "trns" in f or "_la_" in f:
        g.meta["advisory"] = (
            "alpha composited on white, as qwen_omni_utils does for RGBA and the processor for PIL input; transformers' URL/path loaders drop the alpha channel instead"
        )
    if f.endswith("jpg"):
        g.meta["jpeg"] = (
            "decoded with libjpeg-turbo (islow IDCT, fancy chroma upsampling); another decoder may differ by 1-3 levels before the resize"
        )
    save(g, "frontend_image")
    print("   ", f, (h, w), "->", (rh, rw), nt, cmp, off)


if "image" in WHICH:
    for f in IMG:
        one_image(f)
    for f, tag, mn, mx in OV.get("IMG_SIZED") or [
        ("i_w650_h470.png", "_max200704", 3136, 200704),
        ("i_w1920_h1080.jpg", "_max200704", 3136, 200704),
        ("i_w33_h200.png", "_min65536", 65536, 12845056),
    ]:
        one_image(f, tag, {"shortest_edge": mn, "longest_edge": mx})

# --- tables --------------------------------------------------------------------------------------------------------------------
if "table" in WHICH:
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
    import qwen_omni_utils.v2_5.vision_process as vp

    rng = np.random.default_rng(OV.get("SEED", 5))
    rows = []
    hw = [
        (1, 1),
        (1, 200),
        (1, 201),
        (200, 1),
        (201, 1),
        (16, 16),
        (16, 2000),
        (15, 17),
        (48, 48),
        (80, 80),
        (80, 112),
        (112, 80),
        (49, 47),
        (56, 56),
        (55, 57),
        (31, 33),
        (32, 32),
        (64, 32),
        (4100, 3200),
        (3584, 3584),
        (3583, 3585),
        (3600, 3569),
        (12000, 1100),
        (9, 700),
        (700, 9),
        (1080, 1920),
        (720, 1280),
        (2160, 3840),
        (4320, 7680),
        (33, 200),
        (3, 600),
    ]
    hw += [(int(np.exp(rng.uniform(0, 8.7))), int(np.exp(rng.uniform(0, 8.7)))) for _ in range(170)]
    for mn, mx in ((3136, 12845056), (131072, 786432), (4096, 200704), (65536, 16777216)):
        for h, w in hw:
            try:
                r = list(smart_resize(h, w, 32, mn, mx))
            except ValueError:
                r = [0, 0]
            assert (smart_resize_np(h, w, 32, mn, mx) or (0, 0)) == tuple(r)
            try:
                u = list(vp.smart_resize(h, w, 32, mn, mx))
            except ValueError:
                u = [0, 0]
            rows.append([h, w, mn, mx, *r, *u])
    g = Gold(f"{OUT}/frontend_table_smart_resize.safetensors")
    g.add("rows", torch.tensor(rows))
    g.meta = {
        "columns": [
            "height",
            "width",
            "min_pixels",
            "max_pixels",
            "height_out",
            "width_out",
            "utils_height_out",
            "utils_width_out",
        ],
        "factor": 32,
        "refused": "0,0 (aspect ratio above 200)",
        "authority": "height_out,width_out = transformers 5.23.0; utils_* = qwen_omni_utils 0.0.9 with the same factor and limits, for information",
        "rows_where_utils_differ": int(sum(r[4:6] != r[6:8] for r in rows)),
    }
    save(g, "frontend_table")
    print(
        "   smart_resize rows",
        len(rows),
        "utils differ",
        g.meta["rows_where_utils_differ"],
        [r for r in rows if r[4:6] != r[6:8]][:6],
    )
    L = list(range(0, 3201))
    g = Gold(f"{OUT}/frontend_table_audio_tokens.safetensors")
    from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths as fl

    g.add("mel_frames", torch.tensor(L))
    g.add("audio_tokens", fl(torch.tensor(L)))
    assert all(int(a) == audio_tokens(b) for a, b in zip(fl(torch.tensor(L)), L))
    g.meta = {"note": "tokens of one clip as a function of its mel frames, n_window 50"}
    save(g, "frontend_table")
    # video frame sampling: both rules
    rows, idxu, idxh = [], [], []
    vpz = pr.video_processor
    for tot, sfps, fps, mnf, mxf in OV.get("SAMPLING") or [
        (30, 10.0, 2.0, 4, 768),
        (31, 10.0, 2.0, 4, 768),
        (300, 30.0, 2.0, 4, 768),
        (301, 29.97, 2.0, 4, 768),
        (90, 30.0, 2.0, 4, 768),
        (100, 25.0, 1.0, 4, 768),
        (50, 25.0, 2.0, 4, 768),
        (10, 5.0, 2.0, 4, 768),
        (7, 5.0, 2.0, 4, 768),
        (5, 30.0, 2.0, 4, 768),
        (4, 30.0, 2.0, 4, 768),
        (3, 30.0, 2.0, 4, 768),
        (2, 30.0, 2.0, 4, 768),
        (1, 30.0, 2.0, 4, 768),
        (24000, 24.0, 2.0, 4, 768),
        (600, 60.0, 3.0, 4, 16),
        (600, 60.0, 0.5, 4, 768),
        (37, 12.5, 1.5, 6, 10),
    ]:
        ele = {"fps": fps, "min_frames": mnf, "max_frames": mxf} if (mnf, mxf) != (4, 768) else {"fps": fps}
        try:
            n = vp.smart_nframes(ele, tot, sfps)
            iu = torch.linspace(0, tot - 1, n).round().long().tolist()
            sf_ = n / max(tot, 1e-6) * sfps
        except Exception as e:
            n, iu, sf_ = 0, [], 0.0
        try:
            ih = vpz.sample_frames(
                types.SimpleNamespace(total_num_frames=tot, fps=sfps), min_frames=mnf, max_frames=mxf, fps=fps
            ).tolist()
        except Exception as e:
            ih = []
        rows.append(
            {
                "total_frames": tot,
                "source_fps": sfps,
                "fps": fps,
                "min_frames": mnf,
                "max_frames": mxf,
                "utils_indices": iu,
                "utils_sample_fps": sf_,
                "hf_indices": ih,
            }
        )
    g = Gold(f"{OUT}/frontend_table_video_sampling.safetensors")
    g.add("total_frames", torch.tensor([r["total_frames"] for r in rows]))
    g.meta = {
        "rows": rows,
        "note": "utils = qwen_omni_utils 0.0.9 smart_nframes + linspace(0,total-1,n).round() (torch f32 linspace, round half to even); hf = Qwen2VLVideoProcessor.sample_frames of transformers 5.23.0 (only used with do_sample_frames=True). Empty list = refused.",
    }
    save(g, "frontend_table")
    [
        print(
            "   ",
            r["total_frames"],
            r["source_fps"],
            r["fps"],
            "utils",
            len(r["utils_indices"]),
            r["utils_indices"][:8],
            round(r["utils_sample_fps"], 4),
            "hf",
            len(r["hf_indices"]),
            r["hf_indices"][:8],
        )
        for r in rows
    ]


# --- c. video: frames given as PNGs ---------------------------------------------------------------------------------------------
def frames_of(pat, idx):
    return np.stack([np.array(Image.open(f"{M}/{pat}{i}.png").convert("RGB")) for i in idx])


def one_video(name, pat, idx, fps=None, size=None):
    fr = frames_of(pat, idx)
    h, w = fr.shape[1:3]
    kw = {**({"fps": fps} if fps else {}), **({"size": size} if size else {})}
    mn, mx = (size["shortest_edge"], size["longest_edge"]) if size else (131072, 786432)
    o = pr(text=["<|vision_start|><|video_pad|><|vision_end|>"], videos=[fr], videos_kwargs=kw, return_tensors="pt")
    pv, grid, spg = o["pixel_values_videos"], o["video_grid_thw"], o["video_second_per_grid"]
    nt = int((o["input_ids"] == pr.video_token_id).sum())
    gt, gh, gw = grid[0].tolist()
    rh, rw = gh * 16, gw * 16
    assert (rh, rw) == smart_resize_np(h, w, 32, mn, mx), ((rh, rw), smart_resize_np(h, w, 32, mn, mx))
    q = np.stack([resize_u8(f, rh, rw, "torch") for f in fr])
    me, gr = patchify_np(q)
    d = float(np.abs(me - pv.numpy()).max())
    assert gr == (gt, gh, gw), gr
    g = Gold(f"{OUT}/frontend_video_{name}.safetensors")
    g.add("video_grid_thw", grid)
    g.add("video_second_per_grid", torch.as_tensor(spg, dtype=torch.float32))
    step = max(1, -(-pv.shape[0] // OV.get("ROWS", 80)))
    g.add("pixel_values_videos.row_index", torch.arange(0, pv.shape[0], step))
    g.add("pixel_values_videos.rows", pv[::step])
    g.meta = {
        "files": [f"media/{pat}{i}.png" for i in idx],
        "frames": len(idx),
        "frame_hw": [h, w],
        "fps_given_to_the_processor": fps,
        "min_pixels": mn,
        "max_pixels": mx,
        "resized_hw": [rh, rw],
        "frames_after_padding": gt * 2,
        "second_per_grid": float(spg[0]),
        "pixel_values_videos_shape": list(pv.shape),
        "pixel_values_videos_mean": float(pv.double().mean()),
        "pixel_values_videos_abs_sum": float(pv.double().abs().sum()),
        "video_tokens": nt,
        "recomputed_max_diff": d,
        "note": "frames are already the sampled ones; do_sample_frames is false. second_per_grid = 2 / fps, and fps is 1.0 when the caller gives none (so 2.0 even for frames sampled at 2 per second)",
    }
    save(g, "frontend_video")
    print("   ", name, (h, w), len(idx), "->", grid.tolist(), nt, "spg", float(spg[0]), "recomputed diff", d)


if "video" in WHICH:
    small = {"shortest_edge": 4096, "longest_edge": 786432}
    for a in OV.get("VIDEOS") or [
        ("4frames_default_fps2", "v_w64_h48_f", range(4), 2.0),
        ("6frames_default_nofps", "v_w64_h48_f", range(6)),
        ("5frames_odd_small_fps2", "v_w64_h96_f", range(5), 2.0, small),
        ("1frame_small_fps1", "v_w64_h48_f", [2], 1.0, small),
        ("4frames_small_fps1p5", "v_w64_h96_f", range(4), 1.5, small),
    ]:
        one_video(*a)
    # audio-in-video placeholder interleaving
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
        Qwen3OmniMoePreTrainedModelForConditionalGeneration as MP,
    )

    g = Gold(f"{OUT}/frontend_video_interleave.safetensors")
    rows = []
    V, A = pr.video_token_id, pr.audio_token_id
    for i, (grid, spg, na) in enumerate(
        OV.get("INTERLEAVE")
        or [
            ((2, 4, 4), 1.0, 26),
            ((3, 4, 6), 1.0, 33),
            ((2, 4, 4), 2.0, 26),
            ((4, 4, 4), 4 / 3, 50),
            ((3, 4, 4), 0.5, 10),
            ((2, 4, 4), 1.0, 5),
            ((1, 4, 4), 1.0, 13),
            ((5, 8, 6), 2 / 2.027, 70),
        ]
    ):
        s = pr.replace_video_with_audio_token(
            {"video_grid_thw": torch.tensor([grid]), "video_second_per_grid": [spg]},
            0,
            {"num_audio_tokens": torch.tensor([na])},
            0,
            position_id_per_seconds=13.0,
        )
        ids = pr.tokenizer(s)["input_ids"]
        # independent: merge by time, video first on ties
        k, m_ = grid[0] * grid[1] * grid[2] // 4, grid[1] * grid[2] // 4
        vt = [(j // m_) * spg * 13.0 for j in range(k)]
        mine, a, b = [], 0, 0
        while a < k or b < na:
            if b >= na or (a < k and vt[a] <= b):
                mine.append(V)
                a += 1
            else:
                mine.append(A)
                b += 1
        assert ids == [151669] + mine + [151670], i
        g.add(f"ids.{i}", torch.tensor(ids))
        rows.append({"grid_thw": grid, "second_per_grid": spg, "audio_tokens": na, "video_tokens": k})
    g.meta = {
        "rows": rows,
        "note": "ids.i = what replaces <|video_pad|> when the video's audio is used: <|audio_start|> merged pads <|audio_end|>; the outer <|vision_start|> <|vision_end|> stay in the prompt",
    }
    save(g, "frontend_video")


# --- d. chat ------------------------------------------------------------------------------------------------------------------------
def normalise(msgs):
    """OpenAI parts -> the parts that the model's chat template knows"""
    out = []
    for m in msgs:
        if isinstance(m["content"], list):
            c = []
            for p in m["content"]:
                t = p["type"]
                c.append(
                    {"type": "audio"}
                    if t == "input_audio"
                    else {"type": "image"}
                    if t == "image_url"
                    else {"type": "video"}
                    if t == "video_url"
                    else p
                )
            m = {**m, "content": c}
        out.append(m)
    return out


A_ = lambda n: {"type": "input_audio", "input_audio": {"data": f"media/{n}.wav", "format": "wav"}}
I_ = lambda n: {"type": "image_url", "image_url": {"url": f"media/{n}"}}
V_ = lambda pat, k: {
    "type": "video_url",
    "video_url": {"url": f"media/{pat}0..{k - 1}.png", "pattern": pat, "frames": k},
}
T_ = lambda s: {"type": "text", "text": s}
U = lambda *c: {"role": "user", "content": list(c)}
S = lambda s: {"role": "system", "content": s}
B = lambda s: {"role": "assistant", "content": s}
SYS = S(
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and visual inputs, as well as generating text and speech."
)
CHATS = {
    "text_system": dict(m=[SYS, {"role": "user", "content": "Hello, how are you today?"}]),
    "text_nosystem": dict(m=[{"role": "user", "content": "1 + 1 = 2, isn't it?\n\nYes  or no"}]),
    "text_unicode": dict(
        m=[
            S("Antworte kurz."),
            {
                "role": "user",
                "content": "Cafe\u0301 \u0646\u0639\u0645 \u4eca\u5929\u5929\u6c14\u600e\u4e48\u6837\uff1f \U0001f469\u200d\U0001f680 don\u2019t 12345",
            },
        ]
    ),
    "audio": dict(m=[SYS, U(A_("a16k_pcm16_2p513s"))]),
    "audio_text": dict(m=[SYS, U(A_("a8k_pcm16_0p3s"), T_("What do you hear in this audio?"))]),
    "text_image": dict(m=[U(T_("What is in the picture?"), I_("i_w33_h200.png"))]),
    "image_audio_text_image": dict(
        m=[SYS, U(I_("i_w96_h64.png"), A_("a24k_pcm24_1p7s"), T_("Compare."), I_("i_28x28.png"))]
    ),
    "video_text": dict(m=[U(V_("v_w64_h96_f", 5), T_("Describe the video."))], fps=2.0),
    "video_text_nofps": dict(m=[U(V_("v_w64_h96_f", 4), T_("Describe the video."))]),
    "multiturn_image_then_audio": dict(
        m=[
            SYS,
            U(I_("i_w64_h96.png"), T_("Remember this.")),
            B("I will."),
            U(A_("a16k_stereo_pcm16_1s"), T_(" And this?")),
        ]
    ),
    "multiturn_three": dict(
        m=[
            S("Be brief."),
            {"role": "user", "content": "Hi"},
            B("Hello!"),
            {"role": "user", "content": "Bye"},
            B("<think>\nhm\n</think>\n\nBye."),
            {"role": "user", "content": "Again"},
        ]
    ),
    "two_audios_two_turns": dict(m=[U(A_("a16k_stereo_pcm16_1s")), B("Yes."), U(A_("a16k_pcm16_2p513s"))]),
    "system_two_parts": dict(m=[{"role": "system", "content": [T_("One."), T_("Two.")]}, U(T_("a"), T_("b"))]),
    "assistant_last": dict(m=[U(I_("i_28x28.png"), T_("Name it.")), B("It is")], gen=False),
    "assistant_last_string": dict(m=[{"role": "user", "content": "Name it."}, B("It is")], gen=False),
    "av_wide_frame_short_audio": dict(
        m=[U(V_("v_w64_h48_f", 2), T_("Go on."))],
        fps=2.0,
        av="a8k_pcm16_0p3s",
        vsize={"shortest_edge": 131072, "longest_edge": 786432},
    ),
    "two_videos_one_call": dict(m=[U(V_("v_w64_h96_f", 3), T_("and"), V_("v_w64_h48_f", 4))], fps=1.0),
    "system_later": dict(
        m=[{"role": "user", "content": "Hi"}, B("Hello"), S("Now in French."), {"role": "user", "content": "Hi"}]
    ),
    "no_thinking_flag": dict(m=[{"role": "user", "content": "Hi"}], extra={"enable_thinking": False}),
    "tools": dict(
        m=[
            S("Be brief."),
            {"role": "user", "content": "Weather in Paris?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}],
            },
            {"role": "tool", "content": '{"t": 12}'},
        ],
        extra={
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "weather",
                        "description": "Get it.",
                        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
                    },
                }
            ]
        },
    ),
    "av_video": dict(m=[SYS, U(V_("v_w64_h96_f", 4), T_("What is said?"))], fps=2.0, av="a24k_pcm24_1p7s"),
    "image_av_video_audio": dict(
        m=[U(I_("i_w96_h64.png"), V_("v_w64_h96_f", 5), T_("Now this: "), A_("a8k_pcm16_0p3s"))],
        fps=1.5,
        av="a16k_pcm16_2p513s",
    ),
    "literal_specials_in_text": dict(m=[{"role": "user", "content": "say <|im_end|> or <|audio_pad|>"}]),
}


def run_chats(CH, save_dir=OUT, proc=pr, config=CFG, prefix="frontend_chat_"):
    from transformers import Qwen3OmniMoeConfig
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
        Qwen3OmniMoePreTrainedModelForConditionalGeneration as MP,
    )

    tc = Qwen3OmniMoeConfig.from_pretrained(os.path.dirname(config)).thinker_config
    me = types.SimpleNamespace(config=tc, spatial_merge_size=tc.vision_config.spatial_merge_size)
    me.get_llm_pos_ids_for_vision = types.MethodType(MP.get_llm_pos_ids_for_vision, me)
    small = {"shortest_edge": 4096, "longest_edge": 786432}
    for name, c in CH.items():
        msgs = c["m"]
        nm = normalise(msgs)
        text = proc.tokenizer.apply_chat_template(
            nm,
            chat_template=proc.chat_template,
            tokenize=False,
            add_generation_prompt=c.get("gen", True),
            **c.get("extra", {}),
        )
        parts = [p for m in msgs if isinstance(m["content"], list) for p in m["content"]]
        im = [Image.fromarray(open_rgb(f"{M}/{p['image_url']['url'][6:]}")) for p in parts if p["type"] == "image_url"]
        au, src = [], []
        vi = []
        for p in parts:
            if p["type"] == "input_audio":
                au.append(load16k(p["input_audio"]["data"][6:]))
                src.append(None)
            if p["type"] == "video_url":
                vi.append(frames_of(p["video_url"]["pattern"], range(p["video_url"]["frames"])))
                if c.get("av"):
                    au.append(load16k(c["av"] + ".wav"))
                    src.append(len(vi) - 1)
        g = Gold(f"{save_dir}/{prefix}{name}.safetensors")
        kw = {}
        if vi:
            kw["videos"] = vi
            kw["videos_kwargs"] = {"size": c.get("vsize", small), **({"fps": c["fps"]} if c.get("fps") else {})}
        if c.get("av"):
            kw["load_audio_from_video"] = True
            kw["audio_from_video_indices"] = src
        if name == "literal_specials_in_text":
            ids = torch.tensor([proc.tokenizer(text)["input_ids"]])
            o = {}  # the processor would refuse: more placeholders than media
        else:
            o = proc(text=[text], images=im or None, audio=au or None, return_tensors="pt", **kw)
            ids = o["input_ids"]
        lens = o["feature_attention_mask"].sum(1) if "feature_attention_mask" in o else None
        pos, delta = MP.get_rope_index(
            me,
            ids,
            o.get("image_grid_thw"),
            o.get("video_grid_thw"),
            torch.ones_like(ids),
            bool(c.get("av")),
            lens,
            torch.as_tensor(o["video_second_per_grid"]) if "video_second_per_grid" in o else None,
        )
        g.add("input_ids", ids)
        g.add("position_ids", pos.float())
        g.add("rope_delta", torch.as_tensor(delta).float())
        for k in ("image_grid_thw", "video_grid_thw"):
            if k in o:
                g.add(k, o[k])
        if lens is not None:
            g.add("audio_mel_frames", lens)
        if "video_second_per_grid" in o:
            g.add("video_second_per_grid", torch.as_tensor(o["video_second_per_grid"], dtype=torch.float32))
        g.meta = {
            "messages": msgs,
            "template_messages": nm,
            "template_extra": c.get("extra", {}),
            "add_generation_prompt": c.get("gen", True),
            "prompt": text,
            "prompt_expanded": proc.tokenizer.decode(ids[0]),
            "audio_from_video": c.get("av") and f"media/{c['av']}.wav",
            "fps_given_to_the_processor": c.get("fps"),
            "video_min_max_pixels": list(c.get("vsize", small).values()) if vi else None,
            "audio_order": src or None,
        }
        if name == "audio_text":
            g.meta["prompt_if_parts_are_not_normalised"] = proc.tokenizer.apply_chat_template(
                msgs, chat_template=proc.chat_template, tokenize=False, add_generation_prompt=True
            )
        save(g, "frontend_chat")
        print(
            "   ",
            name,
            ids.shape[1],
            "max pos",
            float(pos.max()),
            "delta",
            float(torch.as_tensor(delta).flatten()[0]),
            {k: o[k].tolist() for k in ("image_grid_thw", "video_grid_thw", "video_second_per_grid") if k in o},
            lens.tolist() if lens is not None else "",
            repr(text[-90:]),
        )


if __name__ == "__main__" and "chat" in WHICH:
    run_chats(OV["CHATS"](A_, I_, V_, T_, U, S, B, SYS) if "CHATS" in OV else CHATS)
