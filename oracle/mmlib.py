"""Shared by the multimodal golden scripts: the real processor folder, synthetic media, and independent re-computations in numpy."""

import json, os, shutil, math, io
import numpy as np, torch

torch.cuda.is_current_stream_capturing = lambda: False
HERE = os.path.dirname(os.path.abspath(__file__))

PREPROC = {  # preprocessor_config.json of Qwen/Qwen3-Omni-30B-A3B-* (as published; video_preprocessor_config.json and processor_config.json do not exist there)
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
}
MMTOK = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}


def make_processor_dir(tok_dir, out, chat_template):
    os.makedirs(out, exist_ok=True)
    for f in ("tokenizer.json",):
        shutil.copy(f"{tok_dir}/{f}", out)
    t = json.load(open(f"{tok_dir}/tokenizer_config.json"))
    t.update(MMTOK)
    t["processor_class"] = "Qwen3OmniMoeProcessor"
    t.pop("chat_template", None)
    json.dump(t, open(f"{out}/tokenizer_config.json", "w"), indent=1, ensure_ascii=False)
    json.dump(PREPROC, open(f"{out}/preprocessor_config.json", "w"), indent=1)
    json.dump({"chat_template": chat_template}, open(f"{out}/chat_template.json", "w"), indent=1, ensure_ascii=False)


# --- synthetic media ---------------------------------------------------------------------------------------------
def speechlike(seconds, sr, seed, f0=130.0):
    """Glottal pulse train with moving formants, syllable envelope, breath noise and fricative bursts; band-limited naturally, peak 0.6."""
    rng = np.random.default_rng(seed)
    n = int(round(seconds * sr))
    t = np.arange(n) / sr
    f = f0 * (1 + 0.12 * np.sin(2 * np.pi * 0.7 * t + rng.uniform(0, 6)) + 0.03 * np.sin(2 * np.pi * 5.1 * t))
    ph = np.cumsum(f) / sr
    x = np.zeros(n)
    for h in range(1, int(min(sr / 2, 9000) / (f0 * 1.2))):
        fh = h * f
        a = (
            sum(
                g * np.exp(-(((fh - (c + d * np.sin(2 * np.pi * r * t + p))) / w) ** 2))
                for g, c, d, r, p, w in (
                    (1.0, 550, 220, 1.9, seed, 160),
                    (0.55, 1500, 500, 1.3, seed + 1, 260),
                    (0.3, 2700, 300, 0.9, seed + 2, 380),
                    (0.12, 4200, 500, 0.6, seed + 3, 700),
                )
            )
            + 0.25 / h**1.3
        )
        x += a * np.sin(2 * np.pi * h * ph) * (fh < sr * 0.46)
    env = np.clip(np.sin(2 * np.pi * 2.3 * t + seed) * 0.8 + 0.45, 0, 1) ** 1.5
    fr = np.clip(np.sin(2 * np.pi * 1.1 * t + 2 * seed) - 0.75, 0, 1) * 4
    nz = rng.standard_normal(n)
    nz = np.convolve(nz, [1, -0.9], "same")
    x = x * env * 0.25 + nz * (0.02 * fr + 0.0015)
    return (0.6 * x / np.abs(x).max()).astype(np.float64)


def picture(h, w, seed, noise=True):
    """Synthetic RGB picture: gradients, rings, bars with hard edges, fine texture."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:h, 0:w].astype(np.float64)
    u, v = x / max(w - 1, 1), y / max(h - 1, 1)
    r = np.hypot(x - w * 0.4, y - h * 0.55)
    p = seed * 0.7
    im = np.stack(
        [
            120 + 100 * np.sin(6.3 * u + p) * np.cos(3.1 * v),
            255 * v * (0.4 + 0.6 * u),
            128 + 127 * np.sin(r / (3 + 0.02 * min(h, w)) + p),
        ],
        -1,
    )
    bars = ((x // max(3, w // 23)) % 2 == 0) & (v > 0.7)
    im[bars] = [250, 245, 20]
    box = (abs(u - 0.75) < 0.12) & (abs(v - 0.3) < 0.15)
    im[box] = [10, 20, 200]
    if noise:
        im += rng.normal(0, 6, im.shape)
    return np.clip(np.rint(im), 0, 255).astype(np.uint8)


# --- independent re-computations (numpy only) -------------------------------------------------------------------------
def hz_to_mel(f):
    f = np.asarray(f, float)
    return np.where(f < 1000, 3 * f / 200, 15 + 27 * np.log(np.maximum(f, 1e-9) / 1000) / np.log(6.4))


def mel_to_hz(m):
    m = np.asarray(m, float)
    return np.where(m < 15, 200 * m / 3, 1000 * np.exp(np.log(6.4) / 27 * (m - 15)))


def mel_bank(nb=201, nm=128, lo=0.0, hi=8000.0):
    fr = np.linspace(0, 8000.0, nb)
    pts = mel_to_hz(np.linspace(hz_to_mel(lo), hz_to_mel(hi), nm + 2))
    d = np.diff(pts)
    s = pts[None] - fr[:, None]
    up, down = -s[:, :-2] / d[:-1], s[:, 2:] / d[1:]
    return np.maximum(0, np.minimum(up, down)) * (2.0 / (pts[2:] - pts[:-2]))[None]  # [201,128]


def logmel_np(x):
    """f64. x: mono 16 kHz. Frames = len//160 (the STFT's last frame is dropped)."""
    x = np.asarray(x, np.float64)
    p = np.pad(x, 200, mode="reflect")
    w = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    T = len(x) // 160
    fr = np.lib.stride_tricks.sliding_window_view(p, 400)[::160][:T] * w
    P = np.abs(np.fft.rfft(fr, axis=1)) ** 2
    L = np.log10(np.maximum(P @ mel_bank(), 1e-10))
    L = np.maximum(L, L.max() - 8.0)
    return ((L + 4) / 4).T


def audio_tokens(L, w=50):
    r = L % (2 * w)
    f = lambda n: (n - 1) // 2 + 1
    return f(f(f(r))) + (L // (2 * w)) * 13


def rnd(x):
    return int(np.rint(x))  # half to even, as python's round()


def smart_resize_np(h, w, factor=32, mn=3136, mx=12845056):
    if max(h, w) / min(h, w) > 200:
        return None
    hb, wb = rnd(h / factor) * factor, rnd(w / factor) * factor
    if hb * wb > mx:
        b = math.sqrt(h * w / mx)
        hb, wb = max(factor, math.floor(h / b / factor) * factor), max(factor, math.floor(w / b / factor) * factor)
    elif hb * wb < mn:
        b = math.sqrt(mn / (h * w))
        hb, wb = math.ceil(h * b / factor) * factor, math.ceil(w * b / factor) * factor
    return hb, wb


def cubic_weights(n_in, n_out):
    """Catmull-Rom-like cubic with a = -0.5, antialiased: support 2*max(1, n_in/n_out). Returns list of (xmin, f64 weights)."""
    scale = n_in / n_out
    s = max(scale, 1.0)
    sup = 2.0 * s
    out = []
    for i in range(n_out):
        c = scale * (i + 0.5)
        a = max(int(c - sup + 0.5), 0)
        b = min(int(c + sup + 0.5), n_in)
        x = np.abs((np.arange(a, b) - c + 0.5) / s)
        w = np.where(
            x < 1, ((-0.5 + 2) * x - (-0.5 + 3)) * x * x + 1, np.where(x < 2, (((x - 5) * x + 8) * x - 4) * -0.5, 0.0)
        )
        out.append((a, w / w.sum()))
    return out


def resize_u8(img, oh, ow, mode="torch"):
    """Separable, horizontal pass first, u8 between the passes. mode torch: int16 weights (ATen); pil: 22-bit weights; f64: float weights, each pass rounded; f32once: float, rounded once at the end."""

    def one(a, n_out):  # along axis 1 of [R, n_in, C]
        if a.shape[1] == n_out:
            return a
        W = cubic_weights(a.shape[1], n_out)
        if mode == "torch":
            mxw = max(w.max() for _, w in W)
            prec = 0
            while prec < 22 and int(0.5 + mxw * (1 << (prec + 1))) < (1 << 15):
                prec += 1
        elif mode == "pil":
            prec = 22
        out = np.zeros((a.shape[0], n_out, a.shape[2]), np.float64 if mode == "f32once" else np.uint8)
        for i, (s, w) in enumerate(W):
            seg = a[:, s : s + len(w)]
            if mode in ("torch", "pil"):
                k = np.trunc(w * (1 << prec) + np.where(w < 0, -0.5, 0.5)).astype(np.int64)
                v = (np.einsum("rkc,k->rc", seg.astype(np.int64), k) + (1 << (prec - 1))) >> prec
                out[:, i] = np.clip(v, 0, 255)
            elif mode == "f64":
                out[:, i] = np.clip(np.floor(np.einsum("rkc,k->rc", seg.astype(np.float64), w) + 0.5), 0, 255)
            else:
                out[:, i] = np.einsum("rkc,k->rc", seg.astype(np.float64), w)
        return out

    a = one(img, ow)
    a = one(a.transpose(1, 0, 2), oh).transpose(1, 0, 2)
    return np.clip(np.floor(a + 0.5), 0, 255).astype(np.uint8) if mode == "f32once" else a


def patchify_np(frames, patch=16, merge=2, tp=2):
    """frames u8 [T,H,W,3] (T=1 for an image: repeated) -> f32 [gt*gh*gw, 3*tp*patch*patch], grid"""
    if len(frames) % tp:
        frames = np.concatenate([frames, np.repeat(frames[-1:], tp - len(frames) % tp, 0)])
    x = (frames.astype(np.float32) - np.float32(127.5)) / np.float32(127.5)
    T, H, W, C = x.shape
    gt, gh, gw = T // tp, H // patch, W // patch
    x = x.reshape(gt, tp, gh // merge, merge, patch, gw // merge, merge, patch, C)
    # order of rows: t, block row, block col, row in block, col in block;  order inside a row: channel, frame of the pair, y, x
    return x.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(gt * gh * gw, -1), (gt, gh, gw)


def mrope_np(ids, cfg, image_grids=(), video_grids=(), spg=(), audio_frames=(), talker=False):
    """Positions [3,T] as f32, written from spec_multimodal.md section 7 (not from the reference's code). cfg: thinker_config dict. talker=True: the talker's variant of audio-in-video."""
    IMG, VID, AUD, VS, AS = (
        cfg[k]
        for k in ("image_token_id", "video_token_id", "audio_token_id", "vision_start_token_id", "audio_start_token_id")
    )
    ps, f = cfg["position_id_per_seconds"], np.float32
    T = len(ids)
    if len(image_grids) + len(video_grids) == 0:
        return np.tile(np.arange(T, dtype=f), (3, 1))
    images_left = sum(ids[i] == VS and i + 1 < T and ids[i + 1] == IMG for i in range(T))
    out, nxt, i, ii, vi, ai = [], f(0), 0, 0, 0, 0

    def text(n):
        nonlocal nxt, i
        for _ in range(n):
            out.append((nxt,) * 3)
            nxt = f(nxt + 1)
            i += 1

    def grid(g, step):
        return [
            (f(nxt + f(f(t) * f(step)) * f(ps)), f(nxt + r), f(nxt + c))
            for t in range(g[0])
            for r in range(g[1] // 2)
            for c in range(g[2] // 2)
        ]

    while i < T:
        two = ids[i : i + 2]
        if two == [VS, IMG]:
            text(1)
            b = grid(image_grids[ii], 1.0)
            out += b
            nxt = f(max(map(max, b)) + 1)
            i += len(b)
            ii += 1
            images_left -= 1
            text(1)
        elif two == [VS, VID]:
            text(1)
            b = grid(video_grids[vi], spg[vi])
            out += b
            nxt = f(max(map(max, b)) + 1)
            i += len(b)
            vi += 1
            text(1)
        elif two == [VS, AS] and not (talker and images_left == 0):
            text(2)
            v = grid(video_grids[vi], spg[vi])
            n = audio_tokens(audio_frames[ai])
            a = [(f(nxt + j),) * 3 for j in range(n)]
            p = q = 0
            while p < len(v) and q < n:
                if v[p][0] <= a[q][0]:
                    out.append(v[p])
                    p += 1
                else:
                    out.append(a[q])
                    q += 1
            rest = v[p:] + a[q:]
            out += rest
            nxt = f(max(map(max, rest)) + 1)
            i += len(v) + n
            vi += 1
            ai += 1
            text(2)  # NOT the maximum of the whole block: only of the piece left over at the end
        elif two == [VS, AS]:
            text(2 + audio_tokens(audio_frames[ai]) + int(np.prod(video_grids[vi])) // 4 + 2)
            vi += 1
            ai += 1
        elif two[0] == AS:
            text(1 + audio_tokens(audio_frames[ai]) + 1)
            ai += 1
        else:
            text(1)
    return np.array(out, f).T
