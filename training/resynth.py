"""The codec judged on its own: the teacher says a list of sentences; what comes out of codes and vocoder lies beside it.

    python resynth.py --sentences heldout.txt --hibari FOLDER --codec CODEC_DIR --vocoder C2W_DIR --out DIR [--n 200] [--voice heart]

Writes DIR/teacher/001.wav... and DIR/codec/001.wav... for tools/wer.py, and prints the mel distance between the two.
"""

import argparse, os, wave
import numpy as np, torch

if torch.version.cuda and not torch.cuda.is_available():
    torch.cuda.is_current_stream_capturing = lambda: False
from nets import HOP
from synth import SPEED, Teacher
from train_codec import Codec
from train_vocoder import MelLoss, build


def write(path, x):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with wave.open(path, "wb") as f:
        f.setnchannels(1)
        f.setsampwidth(2)
        f.setframerate(24000)
        f.writeframes((np.clip(x, -1, 1) * 32767).astype("<i2").tobytes())


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    for x in ("sentences", "codec", "out"):
        ap.add_argument("--" + x, required=True)
    ap.add_argument("--vocoder")
    ap.add_argument("--hibari")
    ap.add_argument("--n", type=int, default=200)
    ap.add_argument("--voice", default="heart")
    ap.add_argument("--device", default="cpu")
    a = ap.parse_args()
    t = Teacher(a.hibari)
    m = Codec()
    m.load_state_dict(torch.load(f"{a.codec}/codec.pt", map_location="cpu"), strict=False)
    m = m.to(a.device).eval()
    c = build()
    c.load_state_dict(
        {k: v.float() for k, v in torch.load(f"{a.vocoder}/code2wav.pt", map_location="cpu").items()}, strict=False
    )
    c = c.to(a.device).eval()
    ml, dist, rng = MelLoss(), [], np.random.default_rng(0)
    texts = [l for l in open(a.sentences).read().split("\n") if l and not l.startswith("#")][: a.n]
    for i, text in enumerate(texts, 1):
        w, _ = t.voice(t.nets(t.ids(text), 1.0 if a.voice == "heart" else SPEED), a.voice, rng)
        n = -(-len(w) // HOP)
        x = torch.zeros((n + 2) * HOP)
        x[: len(w)] = torch.from_numpy(w.astype(np.float32) / 32768)
        with torch.no_grad():
            y = c(m.encode(x[None].to(a.device))[:, :n].transpose(1, 2)).cpu()[0, 0]
        k = min(len(y), len(w))
        dist.append(float(ml(y[None, :k], x[None, :k])))
        write(f"{a.out}/teacher/{i:02d}.wav", w.astype(np.float32) / 32767)
        write(f"{a.out}/codec/{i:02d}.wav", y.numpy()[:k])
    print(f"{a.voice}: mel distance {np.mean(dist):.4f} over {len(dist)} sentences")
