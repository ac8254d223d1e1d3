#!/usr/bin/env python3
"""check.py REF.safetensors GOT.safetensors [--atol 1e-4] [--rtol 1e-3] [--only prefix]: per tensor max abs error, error relative to
max|ref|, RMS-relative error, SNR in dB; integer tensors must be equal. Missing tensors in GOT are listed; exit 1 on any failure.
Needs only numpy (own safetensors reader; F32 F16 BF16 F64 I8..I64 U8 BOOL)."""

import sys, json, struct, argparse
import numpy as np

DT = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
    "U32": "<u4",
    "U16": "<u2",
}


def load(p):
    b = open(p, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    h = json.loads(b[8 : 8 + n])
    out = {}
    for k, v in h.items():
        if k == "__metadata__":
            continue
        a, e = v["data_offsets"]
        raw = b[8 + n + a : 8 + n + e]
        x = (
            (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
            if v["dtype"] == "BF16"
            else np.frombuffer(raw, DT[v["dtype"]])
        )
        out[k] = x.reshape(v["shape"])
    return out


ap = argparse.ArgumentParser()
ap.add_argument("ref")
ap.add_argument("got")
ap.add_argument("--atol", type=float, default=1e-4)
ap.add_argument("--rtol", type=float, default=1e-3, help="allowed max abs error relative to max|ref|")
ap.add_argument("--only", default="")
ap.add_argument("--quiet", action="store_true")
a = ap.parse_args()
r, g = load(a.ref), load(a.got)
bad = 0
miss = []
n = 0
for k in sorted(r):
    if not k.startswith(a.only):
        continue
    if k not in g:
        miss.append(k)
        continue
    n += 1
    x, y = r[k], g[k]
    if x.size == y.size and x.shape != y.shape:
        y = y.reshape(x.shape)
    if x.shape != y.shape:
        print(f"SHAPE  {k}: ref {x.shape} got {y.shape}")
        bad += 1
        continue
    if x.dtype.kind in "iub" and y.dtype.kind in "iub":
        d = int((x != y).sum())
        ok = d == 0
        msg = f"ints {x.size}, different {d}" + (
            "" if ok else f", first at {np.argwhere(x != y)[0].tolist()}: ref {x[x != y][0]} got {y[x != y][0]}"
        )
    else:
        x, y = x.astype(np.float64), y.astype(np.float64)
        e = np.abs(x - y)
        mx = np.abs(x).max() if x.size else 0.0
        ma = e.max() if x.size else 0.0
        rel = ma / max(mx, 1e-30)
        rr = np.sqrt((e**2).mean()) / max(np.sqrt((x**2).mean()), 1e-30) if x.size else 0.0
        ok = bool(np.isfinite(y).all()) and (ma <= a.atol or rel <= a.rtol)
        msg = f"max_abs {ma:.3e}  rel_to_max {rel:.3e}  rms_rel {rr:.3e}  snr {-20 * np.log10(max(rr, 1e-30)):.1f} dB"
    bad += not ok
    if not (ok and a.quiet):
        print(f"{'ok   ' if ok else 'FAIL '} {k:44s} {str(list(x.shape)):20s} {msg}")
print(f"{n} compared, {bad} failed, {len(miss)} missing in got" + (": " + ", ".join(miss[:8]) if miss else ""))
sys.exit(1 if bad else 0)
