"""Which word sounds when, read from codes and letters: two small nets and a best path through the phonemes of the text.

    python train_aligner.py CHECKPOINT TEXT_DIR ALIGNED_DIR WARPED_DIR OUT_FILE [--rounds 4] [--judge WARPED_DIR]

WARPED_DIR: what `aligned.py --warp` wrote, whose labels are the teacher's; ALIGNED_DIR: the same of more texts without
--warp, which costs a tenth and has the teacher's durations, stretched to the length of what the voice said. A net
learns from the latter, then from the former, aligns the phonemes of the latter anew (Viterbi training), and so on. The
vectors of codes begin as the vocoder's, along their main directions. --judge: warped speech of texts that it has not
heard, to judge by. Deterministic on one thread. OUT_FILE (safetensors, f16) holds
  codes [groups, 512, d]                    a frame is the sum of its codes' vectors
  sound [h, 5 d], score [4 P, h]            five frames, rectified -> quarters of the middle one by phonemes
  prior [P]                                 what is subtracted from their log probabilities
  letters [29, e], spell [k, 9 e], spelled [C, k]   nine letters, rectified -> C classes for the middle one
  classes [C, 3]                            the phonemes of a class, 0 for none
  penalties [2]                             of a phoneme that is skipped, of a pause between words; in nats
and src/core/align/ reads it.
"""

import argparse, collections, glob, json, math, random
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from numba import njit
from safetensors.torch import load_file, save_file

CB, PARTS, BESIDE, LETTERS_BESIDE = 512, 4, 2, 4
STRESS, MARKS = "ˈˌ", set(';:,.!?—…"()“” ')


def plain(word):
    """A word's phonemes without stress and marks."""
    return "".join(c for c in word if c not in STRESS and c not in MARKS)


def letter(c):
    return ord(c) - 96 if "a" <= c <= "z" else 27 if c in "'’" else 28


def parts_of(word):
    """A written word as runs of letters, each spelled by itself."""
    out = [""]
    for c in word:
        out = out[:-1] + [out[-1] + c.lower()] if c.isalpha() or c in "'’" else out + [""]
    return [p for p in out if any(c.isalpha() for c in p)]


def load(folder, texts):
    """-> [(codes, lab, word, written words, phonemes of each)]"""
    out = []
    for f in sorted(glob.glob(f"{folder}/part_*.json")):
        meta = json.load(open(f))
        if not meta:
            continue
        z = np.load(f[:-5] + ".npz")
        codes, lab, word = z["codes"], z["lab"], z["word"]
        for i, who, a, n, cost, phonemes in meta:
            words, said = texts[i].split(), [plain(w) for w in phonemes.split(" ")]
            if len(words) == len(said) and all(said):
                out.append((codes[a : a + n].astype(np.int64), lab[a : a + n], word[a : a + n], words, said))
    return out


# ------------------------------------------------------------------------------------------------ letters to phonemes
def pair_up(pairs, rounds=4, few=5000):
    """Hard EM: which 0 to 3 phonemes each letter stands for. pairs {(letters, phonemes): count} -> [chunks] or None"""
    score = collections.defaultdict(lambda: -6.0)
    def best(w, p):
        n, m = len(w), len(p)
        at = [[(-1e9, 0)] * (m + 1) for _ in range(n + 1)]
        at[0][0] = (0.0, 0)
        for i in range(1, n + 1):
            for j in range(m + 1):
                for k in range(min(3, j) + 1):
                    s = at[i - 1][j - k][0]
                    if s > -1e8:
                        c = p[j - k : j]
                        s += score[w[i - 1], c] - 2.0 * (k > 1) - 4.0 * (k > 2) - 0.5 * (k == 0)
                        at[i][j] = max(at[i][j], (s, k))
        if at[n][m][0] < -1e8:
            return None
        out, j = [], m
        for i in range(n, 0, -1):
            k = at[i][j][1]
            out.append(p[j - k : j])
            j -= k
        return out[::-1]
    for r in range(rounds):
        count, total = collections.Counter(), collections.Counter()
        found = {}
        for (w, p), n in pairs.most_common(few if r + 1 < rounds else None):
            b = best(w, p)
            if b:
                found[w, p] = b
                for l, c in zip(w, b):
                    count[l, c] += math.sqrt(n)
                    total[l] += math.sqrt(n)
        score = collections.defaultdict(lambda: -9.0, {k: math.log(v / total[k[0]]) for k, v in count.items()})
    return found


class Speller(nn.Module):
    def __init__(self, classes, e=12, k=72):
        super().__init__()
        self.letters = nn.Embedding(29, e)
        self.spell, self.spelled = nn.Linear((2 * LETTERS_BESIDE + 1) * e, k), nn.Linear(k, classes)

    def forward(self, x):
        return self.spelled(F.relu(self.spell(self.letters(x).flatten(1))))


def train_speller(pairs, symbols, epochs=30):
    found = pair_up(pairs)
    used = collections.Counter(c for b in found.values() for c in b)
    classes = [""] + [c for c, n in used.most_common(120) if c and n > 3]
    number = {c: i for i, c in enumerate(classes)}
    xs, ys, ws = [], [], []
    for (w, p), b in found.items():
        if all(c in number for c in b):
            row = [0] * LETTERS_BESIDE + [letter(c) for c in w] + [0] * LETTERS_BESIDE
            for i, c in enumerate(b):
                xs.append(row[i : i + 2 * LETTERS_BESIDE + 1])
                ys.append(number[c])
                ws.append(math.sqrt(pairs[w, p]))
    x, y, w = torch.tensor(xs), torch.tensor(ys), torch.tensor(ws)
    m = Speller(len(classes))
    o = torch.optim.AdamW(m.parameters(), 4e-3, weight_decay=1e-3)
    steps, n = 0, epochs * (len(x) // 512 + 1)
    for _ in range(epochs):
        for b in torch.randperm(len(x)).split(512):
            o.param_groups[0]["lr"] = 4e-3 * (1 - steps / n)
            l = (F.cross_entropy(m(x[b]), y[b], reduction="none") * w[b]).sum() / w[b].sum()
            o.zero_grad()
            l.backward()
            o.step()
            steps += 1
    right = (m(x).argmax(1) == y).float().mean()
    print(f"[aligner] {len(found)} words, {len(classes)} classes; {100 * right:.1f} % of letters as the teacher says")
    return m, classes


def spelled(m, classes, symbols, word, memo={}):
    """The phonemes that the speller finds, as src/core/align/net.rs does."""
    if word not in memo:
        out = []
        for p in parts_of(word):
            row = [0] * LETTERS_BESIDE + [letter(c) for c in p] + [0] * LETTERS_BESIDE
            x = torch.tensor([row[i : i + 2 * LETTERS_BESIDE + 1] for i in range(len(p))])
            with torch.no_grad():
                out += [symbols[s] for k in m(x).argmax(1).tolist() for s in classes[k]]
        memo[word] = out
    return memo[word]


# ------------------------------------------------------------------------------------------------ codes to phonemes
class Ear(nn.Module):
    def __init__(self, phonemes, groups=4, d=24, h=72):
        super().__init__()
        self.groups, self.P = groups, phonemes
        self.codes = nn.Embedding(groups * CB, d)
        nn.init.normal_(self.codes.weight, 0, 0.3)
        self.sound, self.score = nn.Linear((2 * BESIDE + 1) * d, h), nn.Linear(h, PARTS * phonemes)

    def forward(self, codes, drop=0.0):
        """codes [frames, groups], utterances apart by 2 BESIDE rows of -1 -> [frames, PARTS, P]"""
        gone = (codes[:, :1] < 0).float()
        x = self.codes(codes.clamp(min=0) + torch.arange(self.groups) * CB)
        if drop:
            x = x * (torch.rand(x.shape[:2])[..., None] > drop) / (1 - drop)
        x = F.dropout(x.sum(1), drop) * (1 - gone)
        n = len(x)
        x = F.pad(x, (0, 0, BESIDE, BESIDE))
        x = torch.cat([x[k : k + n] for k in range(2 * BESIDE + 1)], 1)
        return self.score(F.dropout(F.relu(self.sound(x)), drop)).view(n, PARTS, self.P)


def vectors(checkpoint, data, groups, d=24):
    """The vocoder's vectors of codes, on the main directions of the frames of `data`."""
    table = load_file(f"{checkpoint}/model.safetensors")["code2wav.code_embedding.weight"].float()
    codes = torch.tensor(np.concatenate([u[0][:, :groups] for u in data]))
    x = table[codes + torch.arange(groups) * CB].sum(1)
    mean = x.mean(0)
    _, s, v = torch.linalg.svd(x - mean, full_matrices=False)
    scale = (len(x) ** 0.5 / s[:d]) ** 0.7
    return (table[: groups * CB] - mean / groups) @ v[:d].T * scale / scale.mean()


def train_ear(m, data, labels, epochs, lr=4e-3):
    groups, gap = m.groups, np.full((BESIDE, m.groups), -1)
    codes = torch.tensor(np.concatenate([np.concatenate([u[0][:, :groups], gap]) for u in data]))
    lab = torch.tensor(np.concatenate([np.concatenate([l, np.full((BESIDE, PARTS), -1)]) for l in labels]))
    m.train()
    o = torch.optim.AdamW(m.parameters(), lr, weight_decay=0.02)
    size, steps = min(1500, len(codes) // 4), 0
    total = epochs * (len(codes) // size + 1)
    for _ in range(epochs):
        shift = random.randrange(size)
        cuts = list(range(shift - size, len(codes), size))
        random.shuffle(cuts)
        for a in cuts:
            a, b = max(a, 0), a + size
            if b - a < 100:
                continue
            o.param_groups[0]["lr"] = lr * max(1 - steps / total, 0.02)
            y = m(codes[a:b], 0.15).flatten(0, 1)
            l = F.cross_entropy(y, lab[a:b].flatten(), ignore_index=-1, label_smoothing=0.05)
            o.zero_grad()
            l.backward()
            o.step()
            steps += 1
    m.eval()
    return m


@njit(cache=True)
def viterbi(scores, states, silent, skip, silence):
    """Best path; as src/core/align/path.rs."""
    T, S = len(scores), len(states)
    best = np.full(S, -1e30)
    best[0] = scores[0, states[0]]
    if S > 1:
        best[1] = scores[0, states[1]]
    back = np.zeros((T, S), np.int8)
    for t in range(1, T):
        new = np.full(S, -1e30)
        for s in range(S):
            b, k = best[s], 0
            if s > 0:
                c = best[s - 1] - (silence if silent[s] else 0.0)
                if c > b:
                    b, k = c, 1
            if s > 1 and not (silent[s] and silent[s - 2]):
                c = best[s - 2]
                if not silent[s - 1]:
                    c -= skip + (silence if silent[s] else 0.0)
                if c > b:
                    b, k = c, 2
            back[t, s] = k
            new[s] = b + scores[t, states[s]]
        best = new
    s = S - 1 if S < 2 or best[S - 1] > best[S - 2] else S - 2
    path = np.zeros(T, np.int64)
    for t in range(T - 1, -1, -1):
        path[t] = s
        s -= back[t, s]
    return path


def chain(words):
    """states (phoneme numbers, 0: silence), which word each belongs to (-1: none)"""
    states, of = [0], [-1]
    for w, p in enumerate(words):
        states += p + [0]
        of += [w] * len(p) + [-1]
    return np.array(states), np.array(of)


def align(ear, prior, codes, words, skip, silence):
    with torch.no_grad():
        x = ear(torch.tensor(codes[:, : ear.groups])).log_softmax(-1) - prior
    states, of = chain(words)
    path = viterbi(x.reshape(-1, ear.P).double().numpy(), states, states == 0, skip, silence)
    return states[path], of[path]


def judge(ear, prior, data, spell, skip, silence):
    """Beginnings and ends of words against the labels. -> share within 80 ms, median and 90th percentile in ms"""
    starts, ends, quarter = [], [], 80 / PARTS
    for codes, lab, word, written, said in data:
        _, mine = align(ear, prior, codes, [spell(w, s) for w, s in zip(written, said)], skip, silence)
        theirs = word.reshape(-1)
        for w in range(len(written)):
            a, b = np.nonzero(theirs == w)[0], np.nonzero(mine == w)[0]
            if len(a):
                starts.append(abs(a[0] - b[0]) * quarter if len(b) else 999)
                ends.append(abs(a[-1] - b[-1]) * quarter if len(b) else 999)
    s, e = np.array(starts), np.array(ends)
    both = np.maximum(s, e)
    near = lambda x: f"{100 * (x <= 80).mean():.1f} % within 80 ms"
    f = lambda x: f"{near(x)}, median {np.median(x):.0f}, 90th {np.percentile(x, 90):.0f}"
    return (both <= 80).mean(), f"{len(s)} words; begin {f(s)}; end {f(e)}; both {100 * (both <= 80).mean():.1f} %"


def main():
    ap = argparse.ArgumentParser()
    [ap.add_argument(x) for x in ("checkpoint", "text", "aligned", "warped", "out")]
    ap.add_argument("--rounds", type=int, default=4)
    ap.add_argument("--epochs", type=int, default=10)
    ap.add_argument("--groups", type=int, default=4)
    ap.add_argument("--judge", default=None)
    a = ap.parse_args()
    torch.manual_seed(0), random.seed(0), torch.set_num_threads(1)
    texts = open(f"{a.text}/texts.txt").read().split("\n")[:-1]
    known, data = load(a.warped, texts), load(a.aligned, texts)
    warped = load(a.judge, texts) if a.judge else []
    heard = {" ".join(u[3]) for u in warped}
    known, data = ([u for u in d if " ".join(u[3]) not in heard] for d in (known, data))
    if not known or not data:
        raise SystemExit("the voice ended no sentence: there is nothing to learn from")
    seen = {" ".join(u[3]) for u in known}
    data = [u for u in data if " ".join(u[3]) not in seen]
    alphabet = sorted({c for u in known + data + warped for p in u[4] for c in p})
    symbols = {c: i for i, c in enumerate(alphabet, 1)}
    P = len(symbols) + 1
    length = lambda d: f"{len(d)} utterances, {sum(len(u[0]) for u in d) * 0.08 / 60:.1f} min"
    print(f"[aligner] {length(known)} warped, {length(data)} others, {P - 1} phonemes; judged by {length(warped)}")

    pairs = collections.Counter()
    lines = open(f"{a.text}/words.txt").read().split("\n") if glob.glob(f"{a.text}/words.txt") else []
    spoken = [(t.split(), [plain(w) for w in l.split()]) for t, l in zip(texts, lines) if l]
    spoken += [u[3:] for u in known + data]
    for written, said in spoken:
        for w, p in zip(written, said):
            if len(parts_of(w)) == 1 and p and set(p) <= set(symbols):
                pairs[parts_of(w)[0], p] += 1
    speller, classes = train_speller(pairs, symbols)

    # The teacher's labels; what is no phoneme of the alphabet counts as silence.
    sure = [np.vectorize(lambda c: symbols.get(chr(c), 0) if c else 0)(u[1]) for u in known]
    truth = lambda w, s: [symbols[c] for c in s if c in symbols]
    mine = lambda w, s: spelled(speller, classes, symbols, w)
    labels = [np.vectorize(lambda c: symbols.get(chr(c), 0) if c else 0)(u[1]) for u in data]
    count = np.bincount(np.concatenate([l.ravel() for l in sure]), minlength=P) + 1.0
    prior = torch.tensor(np.log(count / count.sum()), dtype=torch.float32) * 0.6
    ear = Ear(P, a.groups)
    ear.codes.weight.data = vectors(a.checkpoint, known + data, a.groups)
    for r in range(a.rounds):
        train_ear(ear, data + known, labels + sure, a.epochs if r == 0 else a.epochs // 2, 4e-3 if r == 0 else 2e-3)
        train_ear(ear, known, sure, 6, 1e-3)
        for name, spell in (("teacher's phonemes", truth), ("spelled", mine)):
            if warped:
                print(f"[aligner] round {r + 1}, {name}: {judge(ear, prior, warped, spell, 3.0, -2.0)[1]}", flush=True)
        for k, u in enumerate(data if r + 1 < a.rounds else []):
            states, _ = align(ear, prior, u[0], [truth(w, s) for w, s in zip(*u[3:])], 6.0, 0.0)
            labels[k] = states.reshape(-1, PARTS)
    penalties = torch.tensor([3.0, -2.0])
    if warped:
        for skip in (3.0,):
            for silence in (-4.0, -3.0, -2.0):
                print(skip, silence, judge(ear, prior, warped, mine, skip, silence)[1], flush=True)
    chunks = torch.tensor([([symbols[c] for c in k] + [0] * 3)[:3] for k in classes], dtype=torch.float32)
    out = {"codes": ear.codes.weight.view(a.groups, CB, -1), "prior": prior, "letters": speller.letters.weight}
    out |= {"classes": chunks, "penalties": penalties}
    layers = {"sound": ear.sound, "score": ear.score, "spell": speller.spell, "spelled": speller.spelled}
    for name, layer in layers.items():
        out |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
    halves = {k: v.detach().half().contiguous() for k, v in out.items()}
    save_file(halves, a.out, metadata={"phonemes": "".join(alphabet)})
    print(f"[aligner] {sum(v.numel() for v in out.values()) * 2 / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
