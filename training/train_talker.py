"""The talker and its code predictor, teacher forced on exactly the rows that the reference's generate() builds.

    [torchrun --nproc_per_node N] python train_talker.py TEXT_DIR CODES_DIR THINKER_DIR OUT_DIR --minutes 20 [--device cuda] [--init talker.pt]
        [--fraction A B]

Losses: cross entropy of group 0 (and the end), of groups 1..7, and a hundredth of the experts' load balance. Two guides
that are thrown away afterwards: the phonemes of the coming frame are read from the talker's output, and after its fourth
layer, wherever a word of the text ends, the phonemes of that word. Input frames are damaged at random, so that the model
learns to recover from its own mistakes. Matrices move by Muon, the rest by AdamW. Codes are taken from encode.py as they
come. Writes OUT_DIR/talker.pt (averaged weights) and state.pt (the weights themselves, and the guides).

A training that takes several goes: --fraction A B runs the part from A to B of one schedule (learning rates) in --minutes,
and --init state.pt goes on from there; what is lost is the optimizers' momentum, a matter of some fifty steps. --init of a
talker with other codes (--other_codes) takes what reads text, and leaves what knows codes as it is at the start.
"""

import argparse, copy, math, os, random, time
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader
from nets import *
from muon import Muon
from talker_data import Batches, Corpus, Plan, Speech, SPELL
from train_codec import N_PH

CPW = torch.tensor([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5])
TAP = 4  # layers before words are read


class Guides(nn.Module):
    def __init__(self, symbols):
        super().__init__()
        self.frame = nn.Linear(TK["hidden"], 3 * N_PH)
        self.word = nn.Linear(TK["hidden"], SPELL * symbols)


def damaged(codes):
    """codes [N, G]: 5 % of the frames wholly at random, 10 % from a random group on."""
    p = torch.rand(len(codes), device=codes.device)
    first = torch.randint(1, G, (len(codes),), device=codes.device).where(p >= 0.05, 0)
    bad = (p < 0.15)[:, None] & (torch.arange(G, device=codes.device) >= first[:, None])
    return torch.where(bad, torch.randint_like(codes, CB), codes)


def losses(m, guides, speech, words, batch, predict=0, fast=None):
    """predict: that many frames for the code predictor, drawn at random (0: all). -> what is minimized, by name."""
    tx, cid, fed, due, word, rows, ends, n = batch
    codes = speech.codes[fed.clamp(min=0).flatten(), :G].long()
    if m.training:
        codes = damaged(codes)
    x = m.rows(tx.long(), cid.long(), codes.view(*tx.shape, G), fed >= 0)
    h, mid, aux = m.stack.train_rows(x, fast, TAP)
    h, due = h.flatten(0, 1)[rows], due.flatten()[rows]  # n rows with a frame, then the ends
    said = speech.codes[due[:n]].long()
    c0 = F.pad(said[:, 0], (0, len(due) - n), value=EOS_C)
    logits = m.codec_head(h).float()
    out = {"c0": F.cross_entropy(logits, c0)}
    if not m.training:
        out["right"] = (logits.argmax(-1) == c0).float().mean()
    out["phonemes"] = F.cross_entropy(guides.frame(h[:n]).float().view(-1, N_PH), said[:, G:].reshape(-1))
    spelled = words[word.flatten()[ends].long()].long()
    read = guides.word(mid[ends]).float().unflatten(-1, (SPELL, -1))
    out["words"] = F.cross_entropy(read.flatten(0, 1), spelled.flatten(), ignore_index=255)
    h = h[:n]
    if predict:
        i = torch.randint(n, (predict,), device=h.device)
        h, said = h[i], said[i]
    ce = F.cross_entropy(
        m.cp_logits(h, said[:, :G], fast).float().transpose(1, 2), said[:, 1:G], reduction="none"
    ).mean(0)
    out["groups"], out["balance"] = ce, aux
    weights = CPW.to(ce.device)
    out["loss"] = (
        1.5 * out["c0"]
        + 2.0 * (ce * weights).sum() / weights.sum()
        + 0.5 * out["phonemes"]
        + 0.5 * out["words"]
        + 0.01 * aux
    )
    return out


CODES = ("codec_embedding", "codec_head", "cp", "hidden_projection")  # parts of a talker that know codes, or nothing


def warm(m, guides, rows, predict, fast, dev, amp):
    """Compiles before there is speech."""
    L, was = 96, time.time()
    with amp():
        x = m.rows(
            torch.zeros(rows // L, L, dtype=torch.long, device=dev),
            torch.zeros(rows // L, L, dtype=torch.long, device=dev),
            torch.zeros(rows // L, L, G, dtype=torch.long, device=dev),
            torch.ones(rows // L, L, dtype=torch.bool, device=dev),
        )
        h, mid, aux = m.stack.train_rows(x, fast, TAP)
        h, mid = h.flatten(0, 1)[:predict], mid[:predict]
        y = m.cp_logits(h, torch.zeros(len(h), G, dtype=torch.long, device=dev), fast)
        loss = (
            y.float().pow(2).mean()
            + m.codec_head(h).float().pow(2).mean()
            + guides.word(mid).float().pow(2).mean()
            + aux
        )
    loss.backward()
    for p in [*m.parameters(), *guides.parameters()]:
        p.grad = None
    return time.time() - was


def show(out):
    one = lambda v: f"{v.item():.3f}" if v.dim() == 0 else str([round(x, 2) for x in v.tolist()])
    return " ".join(f"{k} {one(v)}" for k, v in out.items() if k != "loss")


class Clock:
    """Share of the time that has passed, the same in every process; asked for at every step, agreed on now and then."""

    def __init__(self, world, minutes, done_by):
        self.world, self.minutes, self.done_by, self.begun = world, minutes, done_by, time.time()
        self.share, self.pace, self.step, self.agreed = 0.0, 0.0, 0, 0

    def seconds(self):
        return float(open(self.done_by).read()) - self.begun if self.done_by else self.minutes * 60

    def tick(self):
        self.step += 1
        self.share += self.pace
        if self.step in (3, 10) or self.step % 25 == 0:
            now = self.world.agree((time.time() - self.begun) / self.seconds())
            if self.step > 10:
                self.pace = (now - self.share + self.pace * (self.step - self.agreed)) / (self.step - self.agreed)
                self.pace = max(self.pace, 0.0)
            self.share, self.agreed = now, self.step
        return self.share


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    [ap.add_argument(x) for x in ("text", "codes", "thinker", "out")]
    ap.add_argument("--minutes", type=float, default=20)
    ap.add_argument(
        "--done_by", help="file with the unix time to be done by, instead of --minutes; may change meanwhile"
    )
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--hours", type=float, default=10, help="begin when so much speech is there")
    ap.add_argument("--rows", type=int, default=61440, help="rows per batch and process")
    ap.add_argument("--predict", type=int, default=4096, help="frames per batch for the code predictor")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--drop", type=float, default=0.03)
    ap.add_argument("--workers", type=int, default=5)
    ap.add_argument("--init", default="", help="talker.pt or state.pt")
    ap.add_argument("--other_codes", action="store_true", help="--init is of a talker with another codec")
    ap.add_argument(
        "--fraction", type=float, nargs=2, default=(0.0, 1.0), help="the part of the schedule that this run is"
    )
    ap.add_argument("--adamw", action="store_true", help="AdamW for matrices too")
    ap.add_argument("--compile", type=int, default=0)
    ap.add_argument("--ema", type=float, default=0.999)
    ap.add_argument("--save_every", type=float, default=60, help="seconds")
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    W = World(a.device)
    dev, cuda = W.dev, a.device == "cuda"
    os.makedirs(a.out, exist_ok=True)
    torch.manual_seed(W.rank)
    log = lambda *x: print("[talker]", *x, flush=True) if W.rank == 0 else None
    torch.backends.cuda.matmul.allow_tf32 = True
    amp = lambda: torch.autocast("cuda" if cuda else "cpu", torch.bfloat16, enabled=cuda)

    corpus = Corpus(a.text)
    te = torch.load(f"{a.thinker}/thinker.pt", map_location="cpu")["embed_tokens.weight"].float()
    TK["drop"] = a.drop
    m, guides = Talker(te).to(dev).train(), Guides(corpus.symbols).to(dev)
    if a.init:
        got = torch.load(a.init, map_location=dev)
        if "talker" in got:
            guides.load_state_dict({k: v.float() for k, v in got["guides"].items()})
            got = got["talker"]
        own = [k for k in got if not (a.other_codes and k.startswith(CODES))]
        m.load_state_dict({k: got[k].float() for k in own}, strict=not a.other_codes)
        log(f"{len(own)} of {len(got)} tensors of {a.init}")
    W.same(m)
    W.same(guides)
    ema = copy.deepcopy(m).eval()
    words, speech = corpus.words.to(dev), Speech(a.codes, corpus, dev)
    fast = None
    if a.compile:
        torch._dynamo.config.recompile_limit = 64
        kept = lambda f: torch.compile(f, dynamic=False)
        fast = kept(lambda l, x, cos, sin: l.before(x, cos, sin)), kept(lambda l, x, o: l.after(x, o))

    every = [p for p in m.parameters() if p.requires_grad] + list(guides.parameters())
    apart = {p for e in (m.codec_embedding, m.codec_head, m.cp_embedding, m.cp_head, guides) for p in e.parameters()}
    apart |= {p for p in every if p.dim() < 2 or min(p.shape) < 16 and p.dim() == 2}
    matrices = [] if a.adamw else [p for p in every if p not in apart]
    rest = [p for p in every if a.adamw or p in apart]
    muon = Muon(matrices)
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in rest if p.dim() > 1]},
            {"params": [p for p in rest if p.dim() <= 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.97),
        weight_decay=0.03,
        fused=cuda,
    )
    log(f"{sum(p.numel() for p in matrices) / 1e6:.1f} M by Muon, {sum(p.numel() for p in rest) / 1e6:.1f} M by AdamW")

    if a.compile:
        log(f"compiled in {warm(m, guides, a.rows, a.predict, fast, dev, amp):.0f} s")
    move = lambda b: [x.to(dev, non_blocking=True) if torch.is_tensor(x) else x for x in b]
    speech.wait(a.hours)
    log(f"{int(speech.count)} utterances, {speech.frames / 45000:.1f} h at the start; {W.size} processes")
    judge, rr = Plan(corpus, speech, a.rows, 3), random.Random(3)
    held = [x for x in speech.held if corpus.kinds[x[0]] in "et"]
    rr.shuffle(held)
    val, size = [], 64 if cuda else 4
    for i in range(0, min(len(held), size * 4), size):
        some = [judge.sequence(x) for x in held[i : i + size]]
        val.append(move(judge.lay(some, max(judge.length(x) for x in some))))

    @torch.no_grad()
    def evaluate():
        if not val:
            return "no validation rows"
        with amp():
            outs = [losses(ema, guides, speech, words, b) for b in val]
        return show(
            {
                k: torch.stack([o[k] if torch.is_tensor(o[k]) else torch.tensor(o[k]) for o in outs]).mean(0)
                for k in outs[0]
            }
        )

    def save():
        torch.save({k: v.detach().cpu() for k, v in ema.state_dict().items()}, f"{a.out}/talker.tmp")
        os.replace(f"{a.out}/talker.tmp", f"{a.out}/talker.pt")
        own = lambda x: {k: v.detach().cpu().bfloat16() for k, v in x.state_dict().items()}
        torch.save({"talker": own(m), "guides": own(guides), "share": share}, f"{a.out}/state.tmp")
        os.replace(f"{a.out}/state.tmp", f"{a.out}/state.pt")

    begun = time.time()
    loader = DataLoader(
        Batches(corpus, speech, a.rows, a.seed * 31 + 1000003 * W.rank),
        batch_size=None,
        num_workers=a.workers,
        prefetch_factor=6 if a.workers else None,
        pin_memory=cuda,
    )
    clock = Clock(W, a.minutes, a.done_by)
    step, frames, saved, polled, since, share = 0, 0, begun, begun, (begun, 0), a.fraction[0]
    for b in loader:
        passed = clock.tick()
        if passed >= 1:
            break
        share = a.fraction[0] + passed * (a.fraction[1] - a.fraction[0])
        lr = a.lr * min(1, (step + 1) / 300) * (0.5 * (1 + math.cos(math.pi * share)) * 0.98 + 0.02)
        for group in adamw.param_groups:
            group["lr"] = lr
        b = move(b)
        with amp():
            out = losses(m, guides, speech, words, b, a.predict, fast)
        for p in every:
            p.grad = None
        out["loss"].backward()
        W.average(every)
        norm = torch.nn.utils.clip_grad_norm_(every, 1.0)
        muon.step(lr)
        adamw.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(m.parameters()), 1 - min(a.ema, (1 + step) / (10 + step)))
        step += 1
        frames += b[-1] * W.size
        now = time.time()
        if now - polled > 8:
            polled = now
            speech.poll()
        if step in (1, 3, 10, 30) or step % 200 == 0:
            pace = (step - since[1]) / (now - since[0])
            since = (now, step)
            log(
                f"step {step} {now - begun:.0f}s {pace:.1f}/s {show(out)} norm {float(norm):.2f} shape {tuple(b[0].shape)} Mframes {frames / 1e6:.1f} of {speech.frames / 45000:.0f} h"
            )
        if now - saved > a.save_every:
            saved = now
            if W.rank == 0:
                save()
                log(f"step {step} {now - begun:.0f}s EMA {evaluate()}")
    if W.rank == 0:
        save()
        log(f"done {step} steps, {frames / 1e6:.1f} M frames; EMA {evaluate()}")
        open(f"{a.out}/DONE", "w").write("ok")
    if W.size > 1:
        W.dist.destroy_process_group()
