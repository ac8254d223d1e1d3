"""The vocoder: the reference's own Code2Wav class, trained from codes to samples: multi-resolution mel loss, then
adversarial (multi-period and multi-resolution STFT discriminators, least squares, feature matching).

    [torchrun --nproc_per_node N] python train_vocoder.py POOL_DIR CODEC_DIR CODES_DIR OUT_DIR --minutes 20 [--device cuda] [--adv_after 0.12] [--init code2wav.pt]

Output sample k of the class is trained to equal input sample k (it emits 1920*T-555 samples for T frames). --init takes the
convolutions of earlier weights; code table and transformer too if --init_all. Writes OUT_DIR/code2wav.pt (averaged weights).
"""

import argparse, copy, json, math, os, time
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

if hasattr(torch, "cuda") and torch.version.cuda and not torch.cuda.is_available():
    torch.cuda.is_current_stream_capturing = lambda: False
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCode2Wav,
    Qwen3OmniMoeCode2WavLayerScale,
    Qwen3OmniMoeConvNeXtBlock,
)
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from nets import G, CB, HOP, SR, C2W, World
from pool import AudioPool
from train_codec import mel_fb

T, SKIP = 20, 4  # frames per window; leading frames without loss (their left context is missing)
LOSS = 555  # samples HF's transposed convolutions trim away


def build(tok_sd=None):
    m = Qwen3OmniMoeCode2Wav(Qwen3OmniMoeCode2WavConfig(**C2W))
    for x in m.modules():
        if isinstance(x, (nn.Conv1d, nn.ConvTranspose1d, nn.Linear)):
            x.reset_parameters()
        if isinstance(x, Qwen3OmniMoeCode2WavLayerScale):
            x.scale.data.fill_(0.1)
        if isinstance(x, Qwen3OmniMoeConvNeXtBlock):
            x.gamma.data.fill_(0.1)
    for n, p in m.named_parameters():
        if n.endswith("alpha") or n.endswith("beta"):
            p.data.zero_()
    if tok_sd is not None:  # code table = codebooks through a random isometry, so its geometry is the RVQ's
        cb = tok_sd["rvq.cb"].float()
        q, _ = torch.linalg.qr(torch.randn(C2W["hidden_size"], cb.shape[-1]))
        e = cb @ q.t().to(cb)
        e = e / e[0].std().clamp(min=1e-6)
        m.code_embedding.weight.data.copy_((e * G).reshape(G * CB, -1) / 2)
    return m


class MelLoss(nn.Module):
    def __init__(self, cfg=((2048, 320), (1024, 160), (512, 80), (256, 40), (128, 20), (64, 10))):
        super().__init__()
        self.cfg = cfg
        for n, k in cfg:
            self.register_buffer(f"fb{n}", mel_fb(n, k))
            self.register_buffer(f"w{n}", torch.hann_window(n))

    def forward(self, x, y):
        l = 0
        for n, k in self.cfg:
            f = lambda s: (
                getattr(self, f"fb{n}") @ torch.stft(s, n, n // 4, n, getattr(self, f"w{n}"), return_complex=True).abs()
            )
            a, b = f(x), f(y)
            l = l + ((a.clamp(min=1e-3).log10() - b.clamp(min=1e-3).log10()).abs().mean() + 0.02 * (a - b).abs().mean())
        return l


class PeriodD(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p
        ch = (1, 24, 64, 160, 256)
        self.c = nn.ModuleList(
            [weight_norm(nn.Conv2d(ch[i], ch[i + 1], (5, 1), (3, 1), (2, 0))) for i in range(4)]
            + [weight_norm(nn.Conv2d(256, 256, (5, 1), 1, (2, 0)))]
        )
        self.o = weight_norm(nn.Conv2d(256, 1, (3, 1), 1, (1, 0)))

    def forward(self, x):
        x = F.pad(x, (0, (-x.shape[-1]) % self.p), "reflect")
        x = x.view(x.shape[0], 1, -1, self.p)
        f = []
        for c in self.c:
            x = F.leaky_relu(c(x), 0.1)
            f.append(x)
        x = self.o(x)
        f.append(x)
        return f


class SpecD(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n
        C = 24
        self.register_buffer("w", torch.hann_window(n))
        self.c = nn.ModuleList(
            [weight_norm(nn.Conv2d(2, C, (3, 5), 1, (1, 2)))]
            + [weight_norm(nn.Conv2d(C, C, (3, 5), (1, 2), (d, 2), dilation=(d, 1))) for d in (1, 2, 4)]
            + [weight_norm(nn.Conv2d(C, C, (3, 3), 1, (1, 1)))]
        )
        self.o = weight_norm(nn.Conv2d(C, 1, (3, 3), 1, (1, 1)))

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            s = torch.stft(x.squeeze(1).float(), self.n, self.n // 4, self.n, self.w, return_complex=True)
        x = torch.stack([s.real, s.imag], 1).transpose(2, 3)
        f = []
        for c in self.c:
            x = F.leaky_relu(c(x), 0.1)
            f.append(x)
        x = self.o(x)
        f.append(x)
        return f


class Disc(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = nn.ModuleList([PeriodD(p) for p in (2, 3, 5, 7, 11)] + [SpecD(n) for n in (2048, 1024, 512)])

    def forward(self, x):
        return [d(x) for d in self.d]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    [ap.add_argument(x) for x in ("pool", "codec", "codes", "out")]
    ap.add_argument("--minutes", type=float, default=20)
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--done_by", type=float, default=0, help="unix time to be done by, instead of --minutes")
    ap.add_argument("--batch", type=int, default=40)
    ap.add_argument("--hours", type=float, default=100, help="room for so much audio")
    ap.add_argument("--min_utts", type=int, default=5000)
    ap.add_argument("--adv_after", type=float, default=0.12)
    ap.add_argument("--lr", type=float, default=4e-4)
    ap.add_argument("--save_every", type=float, default=1.0)
    ap.add_argument("--compile", type=int, default=0)
    ap.add_argument("--init", default="")
    ap.add_argument("--init_all", type=int, default=0)
    a = ap.parse_args()
    W = World(a.device)
    dev = W.dev
    cuda = a.device == "cuda"
    os.makedirs(a.out, exist_ok=True)
    torch.manual_seed(0)
    log = lambda *x: print(*x, flush=True) if W.rank == 0 else None
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True

    def conv_part(up, dec, h):
        for bs in up:
            for b in bs:
                h = b(h)
        for b in dec:
            h = b(h)
        return h

    conv = conv_part
    if a.compile:  # compiled while the codes are still being made
        try:
            w = build().to(dev).train()
            compiled = torch.compile(conv_part, dynamic=False)
            t0 = time.time()
            for _ in range(2):
                compiled(
                    w.upsample, w.decoder, torch.randn(a.batch, C2W["hidden_size"], T, device=dev, requires_grad=True)
                ).pow(2).mean().backward()
            log(f"[vocoder] compiled in {time.time() - t0:.0f} s")
            conv = compiled
            del w
        except Exception as ex:
            print("[vocoder] compile failed, eager", repr(ex)[:400], flush=True)
    while not os.path.exists(f"{a.codec}/DONE"):
        time.sleep(0.5)
    pool = AudioPool(a.pool, dev, a.hours, a.codes)
    while pool.poll(False) < a.min_utts and not os.path.exists(f"{a.codes}/DONE"):
        time.sleep(1)
    if W.rank == 0:
        pool.poll()
    m = build(torch.load(f"{a.codec}/codec.pt", map_location="cpu"))
    if a.init:
        sd = {
            k: v.float()
            for k, v in torch.load(a.init, map_location="cpu").items()
            if a.init_all or k.startswith(("upsample", "decoder"))
        }
        m.load_state_dict(sd, strict=False)
        log(f"[vocoder] {len(sd)} tensors of {a.init}")
    m = m.to(dev).train()
    D = Disc().to(dev)
    ml = MelLoss().to(dev)
    W.same(m)
    W.same(D)
    ema = copy.deepcopy(m).eval()
    torch.manual_seed(1 + W.rank)

    def run(codes):
        h = m.pre_transformer(
            inputs_embeds=m.code_embedding(codes.transpose(1, 2) + m.code_offset).mean(1)
        ).last_hidden_state.transpose(1, 2)
        return conv(m.upsample, m.decoder, h)

    og = torch.optim.AdamW(m.parameters(), a.lr, betas=(0.8, 0.99), weight_decay=1e-4, fused=cuda)
    od = torch.optim.AdamW(D.parameters(), a.lr * 0.75, betas=(0.8, 0.99), weight_decay=1e-4, fused=cuda)
    PG, PD = list(m.parameters()), list(D.parameters())
    t0, step, saved, last, fr = time.time(), 0, 0.0, 0.0, 0.0
    total = a.minutes * 60 if not a.done_by else a.done_by - t0
    amp = torch.autocast("cuda" if cuda else "cpu", torch.bfloat16, enabled=cuda)

    def save():
        torch.save({k: v.detach().cpu() for k, v in ema.state_dict().items()}, f"{a.out}/code2wav.tmp")
        os.replace(f"{a.out}/code2wav.tmp", f"{a.out}/code2wav.pt")

    while fr < 1:
        el = (time.time() - t0) / 60
        if time.time() - last > 20 or step == 0:
            pool.poll(False)
            last = time.time()
            cdf = torch.cumsum(pool.len.double(), 0)
            cdf = cdf / cdf[-1]
            nf = (pool.len + HOP - 1) // HOP
        for o, k in ((og, 1.0), (od, 0.75)):
            for gp in o.param_groups:
                gp["lr"] = a.lr * k * min(1, (step + 1) / 200) * (0.5 * (1 + math.cos(math.pi * fr)) * 0.95 + 0.05)
        it = torch.searchsorted(cdf, torch.rand(a.batch, device=dev, dtype=torch.float64)).clamp(max=len(cdf) - 1)
        frames = nf[it]
        start_win = step % 8 == 0
        hi = (frames - T).clamp(min=0)
        f0 = torch.zeros_like(hi) if start_win else (torch.rand(a.batch, device=dev) * (hi + 1)).long().clamp(max=hi)
        ci = f0[:, None] + torch.arange(T, device=dev)
        # utterances shorter than the window: repeat their last (silent) frame, audio zero padded
        c = pool.codes[pool.f0[it][:, None] + torch.minimum(ci, frames[:, None] - 1)].long()
        x = pool.window(pool.start[it] + f0 * HOP, pool.len[it] - f0 * HOP, T * HOP - LOSS)[:, None]
        s = 0 if start_win else SKIP * HOP
        y = run(c)
        y = y[..., s:]
        x = x[..., s:]
        adv = fr > a.adv_after
        if adv:
            with amp:
                fr_, ff_ = D(x), D(y.detach())
            ld = sum(((1 - f[-1].float()) ** 2).mean() + (g[-1].float() ** 2).mean() for f, g in zip(fr_, ff_)) / len(
                fr_
            )
            od.zero_grad(set_to_none=True)
            ld.backward()
            W.average(PD)
            torch.nn.utils.clip_grad_norm_(PD, 10.0)
            od.step()
        lm = ml(y.squeeze(1).float(), x.squeeze(1))
        loss = lm * 10.0
        la = lf = torch.zeros(())
        if adv:
            D.requires_grad_(False)
            with amp:
                ff_ = D(y)
            la = sum(((1 - g[-1].float()) ** 2).mean() for g in ff_) / len(ff_)
            lf = sum(
                (u.detach().float() - v.float()).abs().mean() / (u.detach().float().abs().mean() + 1e-4)
                for f, g in zip(fr_, ff_)
                for u, v in zip(f[:-1], g[:-1])
            ) / len(ff_)
            loss = loss + la + 0.5 * lf
            D.requires_grad_(True)
        og.zero_grad(set_to_none=True)
        loss.backward()
        W.average(PG)
        fr = W.agree((time.time() - t0) / total)
        gn = torch.nn.utils.clip_grad_norm_(PG, 10.0)
        og.step()
        step += 1
        with torch.no_grad():
            d = min(0.999, (1 + step) / (10 + step))
            torch._foreach_lerp_(list(ema.parameters()), PG, 1 - d)
        if step % 200 == 0 or step <= 3:
            log(
                f"[vocoder] step {step} {el * 60:.0f}s mel {lm.item():.4f} adv {la.item():.3f} fm {lf.item():.3f} gn {gn.item():.2f}"
                + (f" d {ld.item():.3f}" if adv else "")
            )
        if el - saved > a.save_every:
            saved = el
            if W.rank == 0:
                save()
    if W.rank == 0:
        save()
        log(f"[vocoder] done {step} steps")
        open(f"{a.out}/DONE", "w").write("ok")
    if W.size > 1:
        W.dist.destroy_process_group()
