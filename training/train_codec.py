"""The speech codec (training only): log-mel encoder -> 8 x 512 residual quantizer at 12.5 frames/s -> mel decoder.

    python train_codec.py POOL_DIR OUT_DIR --minutes 4 [--device cuda] [--batch 128] [--init codec.pt]

Losses: L1 + L2 of the log mel spectrogram (a quarter of the windows with only their first groups), commitment, and the
cross entropy of the phonemes that a small head reads from group 0 alone: so group 0 says what is spoken, the others how.
Writes OUT_DIR/codec.pt.
"""

import argparse, json, math, os, time
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from nets import G, CB, HOP, SR
from pool import AudioPool

W = 48  # training window, frames
RES = ((1024, 100), (2048, 128))  # n_fft, mel bins; hop 240 = 100 Hz
D = 64
N_PH = 178  # phonemes of the teacher


def mel_fb(n_fft, n_mels, sr=SR, fmin=0.0, fmax=12000.0):
    hz2m = lambda f: 2595 * np.log10(1 + f / 700)
    m2hz = lambda m: 700 * (10 ** (m / 2595) - 1)
    pts = m2hz(np.linspace(hz2m(fmin), hz2m(fmax), n_mels + 2))
    fr = np.linspace(0, sr / 2, n_fft // 2 + 1)
    fb = np.maximum(
        0,
        np.minimum(
            (fr[None] - pts[:-2, None]) / np.diff(pts)[:-1, None], (pts[2:, None] - fr[None]) / np.diff(pts)[1:, None]
        ),
    )
    return torch.tensor(fb, dtype=torch.float32)


class Mel(nn.Module):
    def __init__(self):
        super().__init__()
        for i, (n, m) in enumerate(RES):
            self.register_buffer(f"fb{i}", mel_fb(n, m))
            self.register_buffer(f"win{i}", torch.hann_window(n))

    def forward(self, x):  # [B, T*240] -> [B, 228, T]
        out = []
        for i, (n, m) in enumerate(RES):
            s = torch.stft(
                F.pad(x, ((n - 240) // 2, (n - 240) // 2)),
                n,
                240,
                n,
                getattr(self, f"win{i}"),
                center=False,
                return_complex=True,
            ).abs()
            with torch.autocast(x.device.type, enabled=False):
                out.append((getattr(self, f"fb{i}") @ s.float()).clamp(min=5e-3).log())
        return (torch.cat(out, 1) + 1.5) / 2.0


class Block(nn.Module):
    def __init__(self, d, causal=False, k=5, mult=2):
        super().__init__()
        self.pad = (k - 1, 0) if causal else (k // 2, k // 2)
        self.dw, self.norm, self.p1, self.p2 = (
            nn.Conv1d(d, d, k),
            nn.LayerNorm(d),
            nn.Linear(d, mult * d),
            nn.Linear(mult * d, d),
        )
        self.g = nn.Parameter(torch.full((d,), 0.1))

    def forward(self, x):
        y = self.dw(F.pad(x, self.pad)).transpose(1, 2)
        return x + (self.g * self.p2(F.gelu(self.p1(self.norm(y))))).transpose(1, 2)


class RVQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cb", torch.zeros(G, CB, D))
        self.register_buffer("n", torch.ones(G, CB))
        self.register_buffer("s", torch.zeros(G, CB, D))
        self.register_buffer("ready", torch.zeros(()))

    @torch.no_grad()
    def nearest(self, r, g):
        with torch.autocast(r.device.type, enabled=False):
            c = self.cb[g]
            return (c.pow(2).sum(1) - 2 * r.float() @ c.t()).argmin(1)

    @torch.no_grad()
    def kmeans(self, x):
        r = x.clone()
        for g in range(G):
            c = r[torch.randperm(len(r), device=r.device)[:CB]]
            if len(c) < CB:
                c = c[torch.randint(len(c), (CB,), device=r.device)] + 1e-3 * torch.randn(CB, D, device=r.device)
            for _ in range(8):
                self.cb[g] = c
                i = self.nearest(r, g)
                n = torch.bincount(i, minlength=CB).float()
                s = torch.zeros_like(c).index_add_(0, i, r)
                c = torch.where(
                    n[:, None] > 0, s / n[:, None].clamp(min=1), r[torch.randint(len(r), (CB,), device=r.device)]
                )
            self.cb[g] = c
            self.n[g] = 1.0
            self.s[g] = c
            r = r - c[self.nearest(r, g)]
        self.ready.fill_(1)

    def forward(self, z, ndrop=None, decay=0.98, mask=None):
        """z [N,D] -> straight-through sum [N,D], commit loss, codes [N,G], q0 [N,D].  ndrop [N]: groups kept."""
        r, acc, idx, loss, q0 = z, 0, [], 0.0, None
        for g in range(G):
            i = self.nearest(r.detach(), g)
            q = self.cb[g][i]
            idx.append(i)
            if self.training and self.ready > 0:
                with torch.no_grad():
                    rd = r.detach()
                    w = torch.ones(len(rd), device=z.device) if mask is None else mask.float()
                    n = torch.zeros(CB, device=z.device).index_add_(0, i, w)
                    s = torch.zeros(CB, D, device=z.device).index_add_(0, i, rd * w[:, None])
                    self.n[g].mul_(decay).add_(n, alpha=1 - decay)
                    self.s[g].mul_(decay).add_(s, alpha=1 - decay)
                    new = self.s[g] / self.n[g].clamp(min=1e-5)[:, None]
                    dead = self.n[g] < 0.03 * self.n[g].mean()
                    rnd = rd[torch.randint(len(rd), (CB,), device=z.device)]
                    self.cb[g] = torch.where(dead[:, None], rnd, new)
                    self.n[g] = torch.where(dead, self.n[g].mean(), self.n[g])
                    self.s[g] = torch.where(dead[:, None], rnd * self.n[g].mean(), self.s[g])
            keep = 1.0 if ndrop is None else (g < ndrop)[:, None].float()
            loss = loss + ((r - q.detach()).pow(2) * keep).mean()
            acc = acc + q * keep
            if g == 0:
                q0 = r + (q - r).detach()
            r = r - q.detach()
        return z + (acc - z).detach(), loss, torch.stack(idx, 1), q0


class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        C = sum(m for _, m in RES)
        self.mel = Mel()
        E = lambda d: Block(d, mult=1)
        self.enc = nn.Sequential(
            nn.Conv1d(C, 256, 5, padding=2),
            E(256),
            E(256),
            nn.Conv1d(256, 320, 4, 2, 1),
            E(320),
            E(320),
            nn.Conv1d(320, 384, 4, 2, 1),
            E(384),
            E(384),
            nn.Conv1d(384, 448, 4, 2, 1),
            E(448),
            E(448),
            E(448),
        )
        self.enc_norm, self.enc_out = nn.LayerNorm(448), nn.Linear(448, D)
        self.rvq = RVQ()
        self.din = nn.Conv1d(D, 384, 1)
        up = lambda a, b: nn.ConvTranspose1d(a, b, 2, 2)
        self.dec = nn.Sequential(
            *[Block(384, True) for _ in range(4)],
            up(384, 320),
            Block(320, True),
            Block(320, True),
            up(320, 256),
            Block(256, True),
            Block(256, True),
            up(256, 256),
            Block(256, True),
            Block(256, True),
            nn.Conv1d(256, C, 1),
        )
        self.phones = nn.Sequential(nn.Conv1d(D, 256, 3, padding=1), nn.GELU(), nn.Conv1d(256, 3 * N_PH, 1))

    def latent(self, mel):
        return self.enc_out(self.enc_norm(self.enc(mel).transpose(1, 2)))  # [B, T, D]

    def forward(self, x, valid_frames, bypass=False):
        m = self.mel(x)
        B = len(x)
        z = self.latent(m)
        T = z.shape[1]
        mask = (torch.arange(T, device=x.device) < valid_frames[:, None]).reshape(-1)
        if self.training and not bypass and self.rvq.ready == 0:
            self.rvq.kmeans(z.detach().float().reshape(-1, D)[mask])
        nd = (
            torch.where(
                torch.rand(B, device=x.device) < 0.25,
                torch.randint(1, G, (B,), device=x.device),
                torch.full((B,), G, device=x.device),
            )
            if self.training
            else torch.full((B,), G, device=x.device)
        )
        if bypass:
            q, codes, q0 = (
                z.float().reshape(-1, D),
                torch.zeros(B * T, G, dtype=torch.long, device=x.device),
                z.float().reshape(-1, D),
            )
            commit = z.float().pow(2).mean() * 1e-3
        else:
            q, commit, codes, q0 = self.rvq(z.float().reshape(-1, D), nd.repeat_interleave(T), mask=mask)
        y = self.dec(self.din(q.view(B, T, D).transpose(1, 2)))
        mm = mask.view(B, 1, T).repeat_interleave(8, 2).float()
        l1 = ((y - m).abs() * mm).sum((1, 2)) / (mm.sum((1, 2)) * m.shape[1])
        l2 = ((y - m).pow(2) * mm).sum((1, 2)) / (mm.sum((1, 2)) * m.shape[1])
        full = nd == G
        lp = (
            self.phones(q0.view(B, T, D).transpose(1, 2)).view(B, 3, N_PH, T).permute(0, 3, 1, 2).float()
        )  # [B, T, 3, phonemes]
        return (l1 + l2).mean(), commit, codes.view(B, T, G), lp, (l1 * full).sum() / full.sum().clamp(min=1)

    @torch.no_grad()
    def encode(self, x):
        """[B, samples (a multiple of HOP)] -> codes [B, frames, G]"""
        r = self.latent(self.mel(x)).float()
        B, T, _ = r.shape
        r = r.reshape(-1, D)
        cs = []
        for g in range(G):
            k = self.rvq.nearest(r, g)
            r = r - self.rvq.cb[g][k]
            cs.append(k)
        return torch.stack(cs, 1).view(B, T, G)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("pool")
    ap.add_argument("out")
    ap.add_argument("--minutes", type=float, default=4)
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--init", default="")
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--hours", type=float, default=100)
    ap.add_argument("--min_utts", type=int, default=5000)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--warm", type=int, default=300)
    a = ap.parse_args()
    dev = a.device
    os.makedirs(a.out, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    pool = AudioPool(a.pool, dev, a.hours)
    while pool.poll(False) < a.min_utts:
        time.sleep(1)
    pool.poll()
    m = Codec().to(dev)
    opt = torch.optim.AdamW(m.parameters(), a.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=dev == "cuda")
    if a.init:
        m.load_state_dict(torch.load(a.init, map_location=dev))
        a.warm = 0
    t0, step, last = time.time(), 0, time.time()
    S = HOP // 3
    amp = torch.autocast(dev, torch.bfloat16, enabled=dev == "cuda")

    def save():
        torch.save(m.state_dict(), f"{a.out}/codec.tmp")
        os.replace(f"{a.out}/codec.tmp", f"{a.out}/codec.pt")

    while True:
        fr = (time.time() - t0) / 60 / a.minutes
        if fr >= 1:
            break
        if time.time() - last > 12:
            pool.poll(False)
            last = time.time()
        for gp in opt.param_groups:
            gp["lr"] = a.lr * min(1, (step + 1) / 200) * (0.5 * (1 + math.cos(math.pi * fr)) * 0.97 + 0.03)
        ii = np.random.randint(0, len(pool.meta), a.batch)
        it = torch.as_tensor(ii, device=dev)
        ln = pool.nl[ii]
        n = W * HOP
        over = np.maximum(ln - n, 0)
        off = (np.random.rand(a.batch) * over).astype(np.int64) // S
        vfn = (np.minimum(ln - off * S, n) + HOP - 1) // HOP
        offt, vf = torch.as_tensor(off, device=dev), torch.as_tensor(vfn, device=dev)
        x = pool.window(pool.start[it] + offt * S, pool.len[it] - offt * S, n)
        k = torch.arange(W * 3, device=dev)
        li = pool.f0[it][:, None] * 3 + offt[:, None] + k  # thirds of frames
        lab = pool.lab.view(-1)[li.clamp(max=pool.lab.numel() - 1)].long()
        inside = (offt[:, None] + k) * S < pool.len[it][:, None]
        with amp:
            l, commit, codes, lp, l1 = m(x, vf, bypass=step < a.warm)
        ce = F.cross_entropy(lp.reshape(-1, N_PH), lab.reshape(-1), reduction="none").view(a.batch, -1)
        ce = (ce * inside).sum() / inside.sum()
        loss = l + 0.25 * commit + 0.12 * ce
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        step += 1
        if step % 200 == 0 or step <= 3:
            u = [len(torch.unique(codes[..., g])) for g in range(G)]
            acc = ((lp.argmax(-1).view(a.batch, -1) == lab) * inside).sum() / inside.sum()
            print(
                f"[codec] step {step} {time.time() - t0:.0f}s l1 {l1.item():.4f} commit {commit.item():.3f} phonemes {ce.item():.3f} acc {acc.item():.3f} used {u}",
                flush=True,
            )
        if step % 1000 == 0:
            save()
    save()
    print(f"[codec] done {step} steps", flush=True)
    open(f"{a.out}/DONE", "w").write("ok")
