"""Reads the parts that synth.py writes (while it is still writing) into flat tensors on the training device."""

import glob, json, os
import numpy as np, torch


class AudioPool:
    """hours: room for so much audio; parts that do not fit are left out. need_codes: only parts that encode.py has done."""

    def __init__(self, d, device, hours, codes=None):
        self.d, self.dev, self.cd = d, device, codes
        self.buf = torch.zeros(int(hours * 3600 * 24000), dtype=torch.int16, device=device)
        self.lab = torch.zeros((int(hours * 3600 * 13.2), 3), dtype=torch.int16, device=device)
        if codes:
            self.codes = torch.zeros((len(self.lab), 8), dtype=torch.int16, device=device)
        self.n, self.f, self.seen, self.meta, self.full = (
            0,
            0,
            set(),
            [],
            False,
        )  # meta rows: text, voice, first sample, samples, first frame

    def poll(self, log=True):
        new = []
        for j in sorted(glob.glob(f"{self.d}/part_*.json")):
            if j in self.seen or self.full:
                continue
            k = j[:-5]
            c = f"{self.cd}/{os.path.basename(k)}.codes.npy"
            if self.cd and not os.path.exists(c):
                continue
            w, l, m = np.load(k + ".npy", mmap_mode="r"), np.load(k + ".lab.npy"), json.load(open(j))
            if self.n + len(w) > len(self.buf) or self.f + len(l) > len(self.lab):
                self.full = True
                break
            self.seen.add(j)
            self.buf[self.n : self.n + len(w)] = torch.from_numpy(np.ascontiguousarray(w)).to(self.dev)
            self.lab[self.f : self.f + len(l)] = torch.from_numpy(l).to(self.dev)
            if self.cd:
                self.codes[self.f : self.f + len(l)] = torch.from_numpy(np.load(c)[:, :8].copy().astype(np.int16)).to(
                    self.dev
                )
            f = self.f
            for i, v, o, n in m:
                new.append((i, v, o + self.n, n, f))
                f += -(-n // 1920)
            assert f - self.f == len(l), j
            self.n += len(w)
            self.f = f
        if new:
            self.meta += new
            self.nl = np.array([m[3] for m in self.meta])
            self.start, self.len, self.f0 = (
                torch.tensor([m[c] for m in self.meta], device=self.dev) for c in (2, 3, 4)
            )
        if log:
            print(
                f"[pool] {len(self.seen)} parts, {len(self.meta)} utterances, {self.n / 24000 / 3600:.2f} h", flush=True
            )
        return len(self.meta)

    def done(self):
        return os.path.exists(f"{self.d}/DONE")

    def window(self, start, valid, n):
        """start [B] sample index in buf, valid [B] samples available, -> float [B, n] zero padded."""
        k = torch.arange(n, device=self.dev)
        x = self.buf[(start[:, None] + k).clamp_(max=len(self.buf) - 1)].float() / 32768
        return x * (k < valid[:, None])
