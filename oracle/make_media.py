"""Synthetic media files for the front-end goldens (no outside data).  run: v5mm/bin/python make_media.py OUT_DIR"""

import sys, os
import numpy as np, soundfile as sf
from PIL import Image
from mmlib import speechlike, picture

OUT = sys.argv[1]
os.makedirs(OUT, exist_ok=True)


def wav(name, x, sr, sub):
    sf.write(f"{OUT}/{name}.wav", x, sr, subtype=sub)


st = lambda a, b: np.stack([a, b], 1)
wav("a8k_pcm16_0p3s", speechlike(0.3, 8000, 1), 8000, "PCM_16")
wav("a16k_pcm16_2p513s", speechlike(2.513, 16000, 2), 16000, "PCM_16")
wav("a16k_stereo_pcm16_1s", st(speechlike(1.0, 16000, 3), 0.5 * speechlike(1.0, 16000, 4, 210)), 16000, "PCM_16")
wav("a24k_pcm24_1p7s", speechlike(1.7, 24000, 5, 190), 24000, "PCM_24")
wav("a44k1_stereo_pcm16_3p1s", st(speechlike(3.1, 44100, 6), 0.6 * speechlike(3.1, 44100, 7, 95)), 44100, "PCM_16")
wav("a48k_pcm16_9p03s", speechlike(9.03, 48000, 8), 48000, "PCM_16")
wav("a16k_float_0p05s", speechlike(0.05, 16000, 9), 16000, "FLOAT")
wav("a11k025_u8_0p7s", speechlike(0.7, 11025, 10), 11025, "PCM_U8")
wav("a16k_silence_0p5s", np.zeros(8000), 16000, "PCM_16")
wav("a16k_pcm16_201samples", speechlike(201 / 16000, 16000, 11), 16000, "PCM_16")
P = lambda h, w, s, **k: Image.fromarray(picture(h, w, s, **k))
P(1, 1, 1).save(f"{OUT}/i_1x1.png")
P(28, 28, 2).save(f"{OUT}/i_28x28.png")
P(200, 33, 3).save(f"{OUT}/i_w33_h200.png")
P(33, 200, 4).save(f"{OUT}/i_w200_h33.png")
P(80, 112, 5).save(f"{OUT}/i_w112_h80.png")
P(480, 640, 6, noise=False).save(f"{OUT}/i_w640_h480.png")
P(470, 650, 7, noise=False).save(f"{OUT}/i_w650_h470.png")
P(1080, 1920, 8, noise=False).save(f"{OUT}/i_w1920_h1080.jpg", quality=80)
P(9, 700, 9).save(f"{OUT}/i_w700_h9.png")
im = picture(70, 100, 10)
yy, xx = np.mgrid[0:70, 0:100]
Image.fromarray(np.dstack([im, ((xx * 3 + yy) % 256).astype(np.uint8)])).save(f"{OUT}/i_rgba_w100_h70.png")
P(80, 80, 11).convert("L").save(f"{OUT}/i_gray_w80_h80.png")
p = P(64, 96, 12).convert("P", palette=Image.Palette.ADAPTIVE, colors=32)
p.save(f"{OUT}/i_palette_trns_w96_h64.png", transparency=3)
j = P(80, 120, 13)
j.save(f"{OUT}/i_w120_h80.jpg", quality=90)
ex = Image.Exif()
ex[0x0112] = 6
j.save(f"{OUT}/i_exif6_w120_h80.jpg", quality=90, exif=ex)
P(64, 96, 14).save(f"{OUT}/i_w96_h64.png")
P(96, 64, 15).save(f"{OUT}/i_w64_h96.png")
P(64, 64, 16).save(f"{OUT}/i_w64_h64.png")
Image.fromarray((picture(64, 64, 17)[..., 0].astype(np.uint16) * 256 + 77)).save(f"{OUT}/i_gray16_w64_h64.png")
for i in range(6):  # a 6-frame clip: a box moves over a still background
    f = picture(48, 64, 20, noise=False)
    f[10 + 3 * i : 22 + 3 * i, 5 + 8 * i : 17 + 8 * i] = [240, 30 + 20 * i, 60]
    Image.fromarray(f).save(f"{OUT}/v_w64_h48_f{i}.png")
for i in range(5):
    f = picture(96, 64, 30 + i, noise=False)
    Image.fromarray(f).save(f"{OUT}/v_w64_h96_f{i}.png")
print({f: os.path.getsize(f"{OUT}/{f}") for f in sorted(os.listdir(OUT))})
