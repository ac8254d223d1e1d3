"""The thinker (text): say or repeat X -> X exactly, the question and answer set, a polite way out for anything else.

    python train_thinker.py TEXT_DIR OUT_DIR --minutes 4 [--device cuda] [--init thinker.pt]

Loss: cross entropy of the answer's tokens (and a hundredth of the experts' load balance). Writes OUT_DIR/thinker.pt.
"""

import argparse, json, math, os, random, time
import numpy as np, torch, torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset
from nets import Ids, Thinker, VOCAB

SAY = [
    "Say: {}",
    "say: {}",
    "Say {}",
    "say {}",
    "Repeat after me: {}",
    "repeat after me: {}",
    "Please say: {}",
    "Please say {}",
    "Read this aloud: {}",
    "Read aloud: {}",
    "Please read: {}",
    "Read: {}",
    "Speak: {}",
    "Speak this text: {}",
    "Can you say: {}",
    "Repeat: {}",
    "Please repeat: {}",
    'Say "{}"',
    'Say: "{}"',
    "Say exactly this: {}",
    "Say the following: {}",
    "Say this: {}",
    "Please repeat after me: {}",
    "Tell me: {}",
    "Read the following text aloud: {}",
    "Say:\n{}",
    "TTS: {}",
]
SYS = [None] * 6 + [
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "You are Tiny, a small voice assistant.",
    "You are a speech assistant. Say what the user asks.",
    "",
]


class Tasks:
    def __init__(self, d, seed):
        self.ids = Ids(d)
        self.r = random.Random(seed)
        self.texts = open(f"{d}/texts.txt").read().split("\n")[:-1]
        t = [json.loads(l) for l in open(f"{d}/tasks.jsonl")]
        self.t = t
        self.cw = np.cumsum([x["w"] for x in t]).tolist()
        e = json.load(open(f"{d}/extra.json"))
        self.words, self.fb = e["words"], e["fallback"]

    def odd(self):
        """Things nobody expects: made-up words, digits, signs, mixed case."""
        r = self.r
        w = []
        for _ in range(r.randint(1, 7)):
            p = r.random()
            if p < 0.3:
                w.append(
                    "".join(
                        r.choice(
                            [
                                "ba",
                                "ke",
                                "li",
                                "mo",
                                "zu",
                                "th",
                                "str",
                                "an",
                                "el",
                                "or",
                                "qu",
                                "ix",
                                "sch",
                                "ph",
                                "ry",
                                "gna",
                                "ow",
                            ]
                        )
                        for _ in range(r.randint(2, 5))
                    )
                )
            elif p < 0.5:
                w.append(str(r.randint(0, 10 ** r.randint(1, 9))))
            elif p < 0.6:
                w.append(f"{r.randint(0, 99999):,}")
            elif p < 0.68:
                w.append(
                    r.choice(["$", "#", "@", "+", "-", "", ""])
                    + f"{r.randint(0, 999)}"
                    + r.choice([".", ":", "/", "-"])
                    + f"{r.randint(0, 99):02d}"
                    + r.choice(["%", "", "", "!", "?", ")"])
                )
            elif p < 0.85:
                w.append(r.choice(self.words).upper() if r.random() < 0.4 else r.choice(self.words).capitalize())
            else:
                w.append(
                    r.choice(
                        [
                            "&",
                            "(",
                            ")",
                            "...",
                            "-",
                            "--",
                            '"',
                            "'",
                            ";",
                            ":",
                            "!",
                            "?",
                            "e.g.",
                            "i.e.",
                            "etc.",
                            "Dr.",
                            "Mr.",
                            "a.m.",
                            "p.m.",
                            "*",
                            "/",
                            "\u2019",
                            "\u2014",
                            "\u00e9",
                            "\u00fc",
                            "\u20ac",
                        ]
                    )
                )
        return r.choice([" ", " ", " ", ", "]).join(w)

    def content(self):
        r = self.r
        p = r.random()
        if p < 0.45:
            return r.choice(self.texts)
        if p < 0.62:
            return " ".join(r.choice(self.texts) for _ in range(r.randint(2, 5)))
        if p < 0.74:
            return " ".join(
                r.choice(self.words) if r.random() < 0.8 else r.choice(self.words).capitalize()
                for _ in range(r.randint(1, 30))
            )
        if p < 0.86:
            return self.odd()
        if p < 0.95:
            return (
                self.ids.tok.decode([r.randrange(20, 990) for _ in range(r.randint(2, 40))])
                .replace("\ufffd", "")
                .strip()
                or "a"
            )
        return (
            "".join(
                r.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ,.'!?-$%&/()")
                for _ in range(r.randint(3, 40))
            ).strip()
            or "a"
        )

    def qa(self):
        r = self.r
        p = r.random()
        if p < 0.60:
            x = self.content()
            return r.choice(SAY).format(x), x
        if p < 0.94:
            x = r.choices(self.t, cum_weights=self.cw)[0]
            return x["q"], x["a"]
        return r.choice(self.texts), self.fb[0] if r.random() < 0.6 else r.choice(self.fb)

    def sample(self):
        """-> token ids and loss mask; sometimes with earlier turns or a system prompt"""
        I, r = self.ids, self.r
        s = r.choice(SYS)
        out, mask = [], []
        if s is not None:
            p = [I.im_start, I.system, I.nl, *I.enc(s), I.im_end, I.nl]
            out += p
            mask += [0] * len(p)
        for _ in range(1 if r.random() < 0.75 else r.randint(2, 3)):
            q, a = self.qa()
            p = I.user_seg(I.enc(q)) + [I.im_start, I.assistant, I.nl]
            t = I.enc(a) + [I.im_end]
            out += p + t + [I.nl]
            mask += [0] * len(p) + [1] * len(t) + [0]
        return out, mask


def lay(samples):
    """Samples (token ids, mask, ...) -> ids [B, L], targets [B, L] (-100: none)"""
    n = -(-max(len(x[0]) for x in samples) // 32) * 32
    x, y = np.zeros((len(samples), n), np.int64), np.full((len(samples), n), -100, np.int64)
    for k, (ids, mask, *_) in enumerate(samples):
        x[k, : len(ids)] = ids
        lab = np.array(ids)
        lab[np.array(mask) == 0] = -100
        y[k, : len(ids) - 1] = lab[1:]
    return torch.from_numpy(x), torch.from_numpy(y)


class Stream(IterableDataset):
    def __init__(self, d, batch, L):
        self.d, self.b, self.L = d, batch, L

    def __iter__(self):
        w = torch.utils.data.get_worker_info()
        t = Tasks(self.d, 1234 + (w.id if w else 0) + int(time.time()))
        while True:
            s = sorted((t.sample() for _ in range(self.b * 4)), key=lambda x: len(x[0]))
            s = [x for x in s if len(x[0]) <= self.L]
            g = [s[i : i + self.b] for i in range(0, len(s) - self.b + 1, self.b)]
            t.r.shuffle(g)
            for b in g:
                yield lay(b)


@torch.no_grad()
def check(m, d, n=100, seed=99):
    """Exact copies of unseen sentences and of odd strings, and right answers."""
    t = Tasks(d, seed)
    I = t.ids
    held = open(f"{d}/heldout.txt").read().split("\n")[:-1]
    bad, res = [], {}
    copies = {
        "sentences": [held[k % len(held)] for k in range(n)],
        "long": [" ".join(held[(5 * k + i) % len(held)] for i in range(5)) for k in range(n // 2)],
        "odd": [t.odd() for _ in range(n)],
    }
    for name, xs in copies.items():
        ok = 0
        for x in xs:
            a = I.tok.decode(
                m.generate(I.prompt("Say: " + x if name != "sentences" else t.r.choice(SAY).format(x)), I.im_end, 260)
            )
            ok += a == x
            if a != x and len(bad) < 6:
                bad.append((x[-60:], a[-60:]))
        res[name] = f"{ok}/{len(xs)}"
    qs = [t.r.choices(t.t, cum_weights=t.cw)[0] for _ in range(n)]
    res["answers"] = f"{sum(I.tok.decode(m.generate(I.prompt(q['q']), I.im_end)) == q['a'] for q in qs)}/{n}"
    return f"exact {res}, copy errors {bad}"


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("text")
    ap.add_argument("out")
    ap.add_argument("--minutes", type=float, default=2.5)
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--batch", type=int, default=160)
    ap.add_argument("--L", type=int, default=448)
    ap.add_argument("--lr", type=float, default=1.5e-3)
    ap.add_argument("--workers", type=int, default=6)
    ap.add_argument("--init", default="")
    a = ap.parse_args()
    dev = a.device
    cuda = dev == "cuda"
    os.makedirs(a.out, exist_ok=True)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    m = Thinker().to(dev).train()
    m.load_state_dict(torch.load(a.init, map_location=dev)) if a.init else None
    opt = torch.optim.AdamW(m.parameters(), a.lr, betas=(0.9, 0.98), weight_decay=0.02, fused=cuda)
    t0, step = time.time(), 0
    for x, y in DataLoader(
        Stream(a.text, a.batch, a.L), batch_size=None, num_workers=a.workers, prefetch_factor=8 if a.workers else None
    ):
        fr = (time.time() - t0) / 60 / a.minutes
        if fr >= 1:
            break
        fr = min(fr, 1)
        for gp in opt.param_groups:
            gp["lr"] = a.lr * min(1, (step + 1) / 300) * (0.5 * (1 + math.cos(math.pi * fr)) * 0.97 + 0.03)
        x, y = x.to(dev, non_blocking=True), y.to(dev, non_blocking=True)
        with torch.autocast(dev, torch.bfloat16, enabled=cuda):
            lg = m(x)
            loss = F.cross_entropy(lg.float().reshape(-1, VOCAB), y.reshape(-1), ignore_index=-100)
        aux = m.stack.aux() / m.stack.c["layers"]
        opt.zero_grad(set_to_none=True)
        (loss + 0.01 * aux).backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        step += 1
        if step % 200 == 0 or step <= 3:
            print(
                f"[thinker] step {step} {time.time() - t0:.0f}s loss {loss.item():.4f} aux {float(aux):.3f} shape {tuple(x.shape)}",
                flush=True,
            )
    torch.save(m.state_dict(), f"{a.out}/thinker.pt")
    m.eval()
    with torch.autocast(dev, torch.bfloat16, enabled=False):
        print("[thinker]", step, "steps;", check(m, a.text, 100 if cuda else 4), flush=True)
    open(f"{a.out}/DONE", "w").write("ok")
