"""Codes of every utterance of the pool, part by part, while synth.py is still writing.

    python encode.py POOL_DIR CODEC_DIR OUT_DIR [--device cuda]

Writes OUT_DIR/part_K.codes.npy (int16 [frames, 8 + 3]: codes, then the phoneme labels of synth.py) and part_K.json
([[text index, voice, first frame, frames], ...]); DONE when the pool is done. Prints the entropy of each group.
"""

import argparse, glob, json, os, time
import numpy as np, torch
from nets import G, CB, HOP
from train_codec import Codec

if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    [ap.add_argument(x) for x in ("pool", "codec", "out")]
    ap.add_argument("--device", default="cuda")
    a = ap.parse_args()
    dev = a.device
    os.makedirs(a.out, exist_ok=True)
    while not os.path.exists(f"{a.codec}/DONE"):
        time.sleep(0.5)
    m = Codec()
    m.load_state_dict(torch.load(f"{a.codec}/codec.pt", map_location="cpu"), strict=False)
    m = m.to(dev).eval()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    seen, hist, t0, frames = set(), np.zeros((G, CB)), time.time(), 0
    while True:
        done = os.path.exists(f"{a.pool}/DONE")
        todo = [j for j in sorted(glob.glob(f"{a.pool}/part_*.json")) if j not in seen]
        for j in todo:
            seen.add(j)
            k = os.path.basename(j)[:-5]
            o = f"{a.out}/{k}"
            if os.path.exists(o + ".json"):
                continue
            meta = json.load(open(j))
            w = torch.from_numpy(np.load(j[:-5] + ".npy")).to(dev)
            lab = np.load(j[:-5] + ".lab.npy")
            nf = np.array([-(-x[3] // HOP) for x in meta])
            first = np.concatenate([[0], np.cumsum(nf)])
            codes = np.zeros((first[-1], G), np.int16)
            order = np.argsort(nf)
            for i in range(0, len(order), 64):
                B = order[i : i + 64]
                T = -(-int(nf[B].max()) // 4) * 4 + 2
                kk = torch.arange(T * HOP, device=dev)
                st = torch.tensor([meta[b][2] for b in B], device=dev)
                n = torch.tensor([meta[b][3] for b in B], device=dev)
                x = w[(st[:, None] + kk).clamp(max=len(w) - 1)].float() / 32768 * (kk < n[:, None])
                with torch.no_grad(), torch.autocast(dev, torch.bfloat16, enabled=dev == "cuda"):
                    c = m.encode(x).to(torch.int16).cpu().numpy()
                for r, b in zip(c, B):
                    codes[first[b] : first[b + 1]] = r[: nf[b]]
            for g in range(G):
                hist[g] += np.bincount(codes[:, g], minlength=CB)
            frames += len(codes)
            np.save(o + ".codes.npy", np.concatenate([codes, lab], 1))
            json.dump([[x[0], x[1], int(f), int(n)] for x, f, n in zip(meta, first, nf)], open(o + ".tmp", "w"))
            os.replace(o + ".tmp", o + ".json")
        if todo:
            print(f"[encode] {len(seen)} parts, {frames / 12.5 / 3600:.1f} h in {time.time() - t0:.0f} s", flush=True)
        if done:
            break
        time.sleep(1)
    p = hist / np.maximum(hist.sum(1, keepdims=True), 1)
    ent = -(p * np.log2(np.maximum(p, 1e-12))).sum(1)
    print(f"[encode] done; entropy of the groups in bits {[round(float(e), 2) for e in ent]}", flush=True)
    open(f"{a.out}/DONE", "w").write("ok")
