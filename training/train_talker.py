"""The talker and its code predictor, teacher forced on exactly the rows that the reference's generate() builds.

    [torchrun --nproc_per_node N] python train_talker.py TEXT_DIR CODES_DIR THINKER_DIR OUT_DIR --minutes 20 [--device cuda] [--init talker.pt]

Losses: cross entropy of group 0 (and the end), of groups 1..7, a hundredth of the experts' load balance, and, as a guide
that is thrown away afterwards, the cross entropy of the phonemes of the coming frame read from the talker's output.
Input frames are damaged at random, so that the model learns to recover from its own mistakes.
Codes are taken from encode.py as they come. Writes OUT_DIR/talker.pt (averaged weights).
"""

import argparse, copy, glob, json, math, os, random, time
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset
from nets import *
from train_codec import N_PH
from train_thinker import SAY

BUCKETS = (112, 208, 416, 736)  # sequence lengths (rows); batches have fixed shapes so that compiled kernels are reused
MAXF = 400  # frames per training sequence (sentences are joined up to this: 32 s)


class Data:
    """val: the rows of every 199th text, which nobody trains on."""

    def __init__(self, text_dir, codes_dir, hours, wait=()):
        self.ids = Ids(text_dir)
        self.texts = open(f"{text_dir}/texts.txt").read().split("\n")[:-1]
        self.t0 = [e.ids for e in self.ids.tok.encode_batch(self.texts)]
        self.t1 = [e.ids for e in self.ids.tok.encode_batch([" " + t for t in self.texts])]
        self.prompts = [json.loads(l)["q"] for l in open(f"{text_dir}/tasks.jsonl")]
        self.dir, self.seen, self.parts, self.by, self.val, self.frames, self.last = (
            codes_dir,
            set(),
            [],
            [[], []],
            [],
            0,
            0.0,
        )
        for f in wait:
            while not os.path.exists(f):
                time.sleep(0.3)
        while self.poll() < hours * 3600 * 12.5 and not os.path.exists(f"{codes_dir}/DONE"):
            time.sleep(1)

    def poll(self):
        self.last = time.time()
        for j in sorted(glob.glob(f"{self.dir}/part_*.json")):
            if j in self.seen:
                continue
            self.seen.add(j)
            c = np.load(j[:-5] + ".codes.npy")
            self.parts.append(c)
            self.frames += len(c)
            for r in json.load(open(j)):
                if not 4 <= r[3] <= 150:
                    continue
                row = (r[0], r[1], len(self.parts) - 1, r[2], r[3])
                if r[0] % 199 == 7:
                    self.val.append(row)
                else:
                    self.by[r[1]].append(row)
        return self.frames

    def user(self, r, text):
        I, p = self.ids, r.random()
        if p < 0.45:
            q = "Say: " + text
        elif p < 0.68:
            q = r.choice(SAY).format(text)
        elif p < 0.86:
            q = r.choice(self.prompts)
        elif p < 0.97:
            q = r.choice(self.texts)
        else:
            q = ""
        u = I.user_seg(I.enc(q))
        if r.random() < 0.08:
            u = I.user_seg(I.enc(r.choice(self.prompts + self.texts[:3000]))) + u
        return u

    def sample(self, r, row=None):
        v = (0 if r.random() < 0.6 or not self.by[1] else 1) if row is None else row[1]
        rows = [row or r.choice(self.by[v])]
        if row is None and r.random() < 0.25:
            n, tot = (r.randint(2, 5) if r.random() < 0.7 else 16), rows[0][4]
            while len(rows) < n:
                x = r.choice(self.by[v])
                if tot + x[4] > MAXF:
                    break
                rows.append(x)
                tot += x[4]
        text = list(self.t0[rows[0][0]])
        for x in rows[1:]:
            text += self.t1[x[0]]
        codes = np.concatenate([self.parts[x[2]][x[3] : x[3] + x[4]] for x in rows])
        full = " ".join(self.texts[x[0]] for x in rows)
        return self.ids.talker_rows(
            self.user(r, full) if row is None else self.ids.user_seg(self.ids.enc("Say: " + full)),
            text,
            len(codes),
            codec(2301 + v),
        ), codes.astype(np.int64)


def collate(d, batch, r, noise, shape=None):
    B, L = shape or (len(batch), -(-max(len(p[0]) + len(c) for p, c in batch) // 32) * 32)
    tx = np.full((B, L), d.ids.pad, np.int64)
    cid = np.zeros((B, L), np.int64)
    con = np.zeros((B, L), np.float32)
    fr = np.zeros((B, L), np.float32)
    cin = np.zeros((B, L, G), np.int64)
    tgt = np.zeros((B, L, G + 3), np.int64)
    y0 = np.full((B, L), -100, np.int64)
    for k, ((pt, pc, tr), c) in enumerate(batch):
        n, f = len(pt), len(c)
        pc = np.array(pc)
        tx[k, :n] = pt
        tx[k, n : n + f] = tr
        cid[k, :n] = np.maximum(pc, 0)
        con[k, :n] = pc >= 0
        fr[k, n : n + f] = 1
        ci = c[:, :G]
        if noise:
            ci = ci.copy()
            m = r.random(f) < 0.05
            ci[m] = r.integers(0, CB, (int(m.sum()), G))
            m = r.random(f) < 0.10
            g = r.integers(1, G, f)
            mm = (np.arange(G)[None] >= g[:, None]) & m[:, None]
            ci[mm] = r.integers(0, CB, int(mm.sum()))
        cin[k, n : n + f] = ci
        tgt[k, n - 1 : n + f - 1] = c
        y0[k, n - 1 : n + f - 1] = c[:, 0]
        y0[k, n + f - 1] = EOS_C
    return [torch.from_numpy(x) for x in (tx, cid, con, cin, fr, tgt, y0)]


class Stream(IterableDataset):
    def __init__(self, d, budget, seed):
        self.d, self.budget, self.seed = d, budget, seed

    def __iter__(self):
        w = torch.utils.data.get_worker_info()
        s = self.seed + (w.id if w else 0) * 7919
        r, nr = random.Random(s), np.random.default_rng(s)
        q = {L: [] for L in BUCKETS}
        while True:
            if time.time() - self.d.last > 30:
                self.d.poll()
            x = self.d.sample(r)
            n = len(x[0][0]) + len(x[1])
            L = next((k for k in BUCKETS if n <= k), None)
            if L is None:
                continue
            q[L].append(x)
            if len(q[L]) * L > self.budget - L:
                yield collate(self.d, q[L], nr, True, (len(q[L]), L))
                q[L] = []


CPW = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5]


def losses(m, b, cp_max=None, train=True, guide=None):
    tx, cid, con, cin, fr, tgt, y0 = b
    h = m.hidden(tx, cid, cin, fr, con)
    sel = y0 >= 0
    hs, y, t = h[sel], y0[sel], tgt[sel]
    l0 = F.cross_entropy(m.codec_head(hs).float(), y)
    acc = lp = None
    if not train:
        acc = (m.codec_head(hs).argmax(-1) == y).float().mean()
    if guide is not None:
        lp = F.cross_entropy(guide(hs).float().view(-1, N_PH), t[:, G:].reshape(-1))
    fsel = y < CB
    hf, t = hs[fsel], t[fsel]
    if cp_max:
        i = torch.randint(len(t), (cp_max,), device=t.device)
        hf, t = hf[i], t[i]
    lg = m.cp_logits(hf, t)
    lc = [F.cross_entropy(x.float(), t[:, g + 1]) for g, x in enumerate(lg)]
    return l0, lc, acc, lp


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    [ap.add_argument(x) for x in ("text", "codes", "thinker", "out")]
    ap.add_argument("--minutes", type=float, default=20)
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--hours", type=float, default=10, help="begin when so much speech is there")
    ap.add_argument("--rows", type=int, default=16384, help="rows per batch and process")
    ap.add_argument("--cp_max", type=int, default=6000)
    ap.add_argument("--lr", type=float, default=1.6e-3)
    ap.add_argument("--workers", type=int, default=8)
    ap.add_argument("--init", default="")
    ap.add_argument("--compile", type=int, default=0)
    ap.add_argument("--ema", type=float, default=0.9985)
    ap.add_argument("--save_every", type=float, default=1.0)
    ap.add_argument("--done_by", type=float, default=0, help="unix time to be done by, instead of --minutes")
    a = ap.parse_args()
    W = World(a.device)
    dev = W.dev
    cuda = a.device == "cuda"
    os.makedirs(a.out, exist_ok=True)
    torch.manual_seed(W.rank)
    log = lambda *x: print(*x, flush=True) if W.rank == 0 else None
    torch.backends.cuda.matmul.allow_tf32 = True
    fast = None
    if a.compile:  # compiled while the codes are still being made
        try:
            import torch._dynamo

            torch._dynamo.config.cache_size_limit = torch._dynamo.config.recompile_limit = 64
            t0 = time.time()
            fast = torch.compile(lambda l, x, cos, sin: l.step(x, cos, sin), dynamic=False)
            w = Talker(torch.zeros(VOCAB, TH["hidden"])).to(dev).train()
            w.stack.fast = w.cp.fast = fast
            for L in BUCKETS:
                with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
                    y = w.stack(torch.randn(a.rows // L, L, TK["hidden"], device=dev, requires_grad=True))
                    ((y.float() ** 2).mean() + w.stack.aux()).backward()
                log(f"[talker] compiled L={L} at {time.time() - t0:.0f} s")
            with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
                (
                    w.cp(
                        torch.randn(a.cp_max, G, TK["hidden"], device=dev, dtype=torch.float32, requires_grad=True)
                    ).float()
                    ** 2
                ).mean().backward()
            log(f"[talker] compiled predictor at {time.time() - t0:.0f} s")
            del w
        except Exception as ex:
            print("[talker] compile failed, eager", repr(ex)[:500], flush=True)
            fast = None
    d = Data(a.text, a.codes, a.hours, (f"{a.thinker}/DONE",))
    te = torch.load(f"{a.thinker}/thinker.pt", map_location="cpu")["embed_tokens.weight"].float()
    log(
        f"[talker] {len(d.by[0])} + {len(d.by[1])} utterances, {d.frames / 12.5 / 3600:.1f} h at the start; {W.size} processes"
    )
    m = Talker(te).to(dev).train()
    guide = nn.Linear(TK["hidden"], 3 * N_PH).to(dev)
    if a.init:
        m.load_state_dict({k: v.float() for k, v in torch.load(a.init, map_location=dev).items()})
    W.same(m)
    W.same(guide)
    ema = copy.deepcopy(m).eval()
    m.stack.fast = m.cp.fast = fast
    P = [p for p in m.parameters() if p.requires_grad] + list(guide.parameters())
    opt = torch.optim.AdamW(
        [{"params": [p for p in P if p.dim() > 1]}, {"params": [p for p in P if p.dim() <= 1], "weight_decay": 0.0}],
        a.lr,
        betas=(0.9, 0.97),
        weight_decay=0.03,
        fused=cuda,
    )
    rr, val, vb = random.Random(3), [], 64 if cuda else 4
    rr.shuffle(d.val)
    d.val = d.val[: 256 if cuda else 4]
    for i in range(0, len(d.val), vb):
        val.append([x.to(dev) for x in collate(d, [d.sample(rr, x) for x in d.val[i : i + vb]], None, False)])
    amp = lambda: torch.autocast("cuda" if cuda else "cpu", torch.bfloat16, enabled=cuda)

    @torch.no_grad()
    def evaluate(mm):
        if not val:
            return "no validation rows"
        with amp():
            r = [losses(mm, b, train=False) for b in val]
        return f"val c0 {np.mean([float(x[0]) for x in r]):.3f} acc {np.mean([float(x[2]) for x in r]):.3f} groups {[round(float(np.mean([float(x[1][g]) for x in r])), 2) for g in range(G - 1)]}"

    def save():
        torch.save({k: v.detach().cpu() for k, v in ema.state_dict().items()}, f"{a.out}/talker.tmp")
        os.replace(f"{a.out}/talker.tmp", f"{a.out}/talker.pt")

    t0, step, saved, frames, fr = time.time(), 0, 0.0, 0, 0.0
    total = a.minutes * 60 if not a.done_by else a.done_by - t0
    for b in DataLoader(
        Stream(d, a.rows, int(t0) + 1000003 * W.rank),
        batch_size=None,
        num_workers=a.workers,
        prefetch_factor=6 if a.workers else None,
        pin_memory=cuda,
    ):
        el = (time.time() - t0) / 60
        if fr >= 1:
            break
        lr = a.lr * min(1, (step + 1) / 250) * (0.5 * (1 + math.cos(math.pi * fr)) * 0.98 + 0.02)
        for gp in opt.param_groups:
            gp["lr"] = lr
        b = [x.to(dev, non_blocking=True) for x in b]
        with amp():
            l0, lc, _, lp = losses(m, b, a.cp_max, guide=guide)
        lcs = sum(w * l for w, l in zip(CPW, lc)) / sum(CPW)
        aux = m.stack.aux() / TK["layers"]
        loss = 1.5 * l0 + 2.0 * lcs + 0.5 * lp + 0.01 * aux
        opt.zero_grad(set_to_none=True)
        loss.backward()
        fr = W.average(P, (time.time() - t0) / total)
        gn = torch.nn.utils.clip_grad_norm_(P, 1.0)
        opt.step()
        step += 1
        with torch.no_grad():
            torch._foreach_lerp_(
                [p for p in ema.parameters()], [p for p in m.parameters()], 1 - min(a.ema, (1 + step) / (10 + step))
            )
        if step % 20 == 0:
            frames += int(b[4].sum()) * 20 * W.size
        if step % 200 == 0 or step <= 3:
            log(
                f"[talker] step {step} {el * 60:.0f}s c0 {l0.item():.3f} phonemes {lp.item():.3f} cp {lcs.item():.3f} {[round(x.item(), 2) for x in lc]} aux {float(aux):.3f} gn {gn.item():.2f} shape {tuple(b[0].shape)} Mframes {frames / 1e6:.2f}"
            )
        if el - saved > a.save_every:
            saved = el
            if W.rank == 0:
                save()
                log(f"[talker] step {step} {el * 60:.0f}s EMA {evaluate(ema)}")
    if W.rank == 0:
        save()
        log(f"[talker] done {step} steps, {frames / 1e6:.1f} M frames; EMA {evaluate(ema)}")
        open(f"{a.out}/DONE", "w").write("ok")
    if W.size > 1:
        W.dist.destroy_process_group()
