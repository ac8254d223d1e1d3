"""What the finished voice says, as codes, and which phoneme of which word sounds when.

    python aligned.py CHECKPOINT TEXT_DIR OUT_DIR [--warp] [--hibari FOLDER] [--limit 2400] [--seed 1] [--device cpu]

The voice speaks texts of TEXT_DIR/texts.txt, sampled as it is when it is served. The teacher knows which phoneme each
of its frames belongs to. With --warp it speaks the texts too, and dynamic time warping of the two spectrograms (40 log
mels, 10 ms) carries that over to the voice; without, its durations are stretched to the length of what the voice said:
far from exact, but a tenth of the work. Texts that the teacher reads as other words than are written are left out.
Writes OUT_DIR/part_K.npz: codes [frames, 8], lab [frames, 4] (the phoneme in each quarter of a frame, as a character, 0
for none), word [frames, 4] (which word, -1 for none); and part_K.json ([[text index, voice, first frame, frames,
warping cost, phonemes], ...]).
"""

import argparse, json, os, random
import numpy as np, torch

if torch.version.cuda and not torch.cuda.is_available():
    torch.cuda.is_current_stream_capturing = lambda: False
from numba import njit
from nets import CB, EOS_C, HOP, SPEAKERS, SR, Ids, Talker, Thinker, from_hf
from synth import DOWN, SPEED, UP, Teacher, resample, with_alignment
from train_codec import mel_fb
from train_vocoder import build

STEP = 240  # samples of a column of the spectrograms
PARTS = 4  # labels of a frame
STRESS = "ˈˌ"
MARKS = set(';:,.!?—…"()“” ')  # of the teacher's alphabet, not spoken
BEGIN, REST = 0.21, 0.04  # seconds of the voice before its first word and after its last, as warping finds
LEAD = 12  # columns of silence put around the teacher's speech
FB, WINDOW = mel_fb(1024, 40, fmax=8000.0), torch.hann_window(1024)


class Voice:
    """The checkpoint, speaking several texts at once."""

    def __init__(self, checkpoint, device):
        sd = from_hf(checkpoint)
        th = Thinker()
        th.load_state_dict(sd["thinker"])
        self.talker = Talker(th.embed_tokens.weight)
        self.talker.load_state_dict(sd["talker"])
        self.talker.to(device).eval()
        self.vocoder = build()
        self.vocoder.load_state_dict(sd["code2wav"])
        self.vocoder.to(device).eval()
        self.ids, self.dev = Ids(checkpoint), device

    @torch.no_grad()
    def speak(self, texts, voice, rng, limit=160):
        """texts whose prompts have as many tokens. -> codes [frames, 8] of each; None where the voice did not end."""
        i, t = self.ids, self.talker
        rows = [i.talker_rows(i.user_seg(i.enc("Say: " + s)), i.enc(s), limit, voice) for s in texts]
        get = lambda k: torch.tensor([r[k] for r in rows], device=self.dev)
        text, codec, trailing = get(0), get(1), get(2)
        caches = [{} for _ in t.stack.layers]
        h = t.stack(t.text(text) + t.codec_embedding(codec.clamp(min=0)) * (codec >= 0)[..., None], 0, caches)[:, -1]
        pos, out, end = text.shape[1], [], [None] * len(texts)
        seen = torch.zeros(len(texts), t.codec_head.out_features, dtype=torch.bool, device=self.dev)
        for n in range(limit):
            logits = t.codec_head(h)
            logits[:, CB:EOS_C] = logits[:, EOS_C + 1 :] = -torch.inf
            logits = torch.where(seen, torch.where(logits > 0, logits / 1.05, logits * 1.05), logits)
            first = self.draw(logits / 0.3, rng)
            for b in (first == EOS_C).nonzero()[:, 0].tolist():
                end[b] = n if end[b] is None else end[b]
            if all(e is not None for e in end):
                break
            seen[torch.arange(len(texts)), first] = True
            codes = torch.zeros(len(texts), 8, dtype=torch.long, device=self.dev)
            codes[:, 0] = first.clamp(max=CB - 1)
            x, kept = torch.stack([h, t.codec_embedding(codes[:, 0])], 1), [{} for _ in t.cp.layers]
            for g in range(7):
                y = t.cp(x, 0 if g == 0 else g + 1, kept)[:, -1]
                codes[:, g + 1] = self.draw(t.cp_head[g](y), rng, 0.8)
                x = t.cp_embedding[g](codes[:, g + 1])[:, None]
            out.append(codes)
            h = t.stack((t.code_rows(codes) + t.text(trailing[:, n]))[:, None], pos + n, caches)[:, -1]
        out = torch.stack(out, 1).cpu().numpy()
        return [None if e is None or e == 0 else out[b, :e] for b, e in enumerate(end)]

    @staticmethod
    def draw(logits, rng, top_p=1.0):
        v, i = logits.topk(50, -1)
        p = v.softmax(-1)
        p = p * (p.cumsum(-1) - p < top_p)
        return i.gather(1, torch.multinomial(p, 1, generator=rng))[:, 0]

    @torch.no_grad()
    def samples(self, codes):
        n = [len(c) for c in codes]
        x = torch.zeros(len(codes), max(n) + 2, 8, dtype=torch.long, device=self.dev)
        for b, c in enumerate(codes):
            x[b, : n[b]] = torch.from_numpy(c)
        y = self.vocoder(x.transpose(1, 2))[:, 0].cpu().numpy()
        return [y[b, : n[b] * HOP] for b in range(len(codes))]


class Reader:
    """The teacher with its alignment."""

    def __init__(self, hibari=None):
        import onnx, onnxruntime as ort

        self.t = Teacher(hibari)
        # Its durations alone are a small part of its graph.
        model = onnx.load_model_from_string(with_alignment(self.t.h.model_path))
        durations = onnx.utils.Extractor(model).extract_model(["ids", "speed"], [model.graph.output[-1].name])
        so = ort.SessionOptions()
        so.intra_op_num_threads = so.inter_op_num_threads = 1
        self.durations = ort.InferenceSession(durations.SerializeToString(), so, providers=["CPUExecutionProvider"])

    def phonemes(self, text):
        """A string, a space between words, and the teacher's ids; None where it reads other words than are written."""
        parts = self.t.h.phonemize(text)
        if len(parts) != 1 or len(parts[0].split()) != len(text.split()):
            return None
        return "".join(c for c in parts[0] if c in self.t.h.vocab), self.t.h.ids(parts[0])

    def timing(self, phonemes, ids, voice):
        """Which phoneme sounds in each column."""
        speed = np.asarray([1.0 if voice == "heart" else SPEED], np.float32)
        which = self.durations.run(None, {"ids": np.asarray([ids], np.int64), "speed": speed})[0].reshape(-1)
        return columns(which, 600, voice, phonemes)

    def read(self, text, voice, rng):
        """-> samples, phonemes (a string), which of them sounds in each column."""
        said = self.phonemes(text)
        if said is None:
            return None
        phonemes, ids = said
        _, net = self.t.nets([ids], 1.0 if voice == "heart" else SPEED)[0]
        w = self.t.sound(net, voice, rng)
        at = columns(net[-1], len(w) // len(net[-1]), voice, phonemes)
        return (w if voice == "heart" else resample(w, UP, DOWN)), phonemes, at


def columns(which, hop, voice, phonemes):
    """The teacher's alignment, whose frames have `hop` samples, for each column of a spectrogram; -1 for none."""
    hop = hop if voice == "heart" else hop * UP // DOWN
    at = np.repeat(np.asarray(which, np.int64), hop)[STEP // 2 :: STEP] - 1  # the ids have a 0 in front
    at[(at < 0) | (at >= len(phonemes))] = -1
    return at


def spectrogram(x):
    """[columns, 40], as loud as all others."""
    x = torch.from_numpy(np.ascontiguousarray(x, np.float32))
    n = len(x) // STEP
    x = torch.nn.functional.pad(x, (392, 1024))
    s = torch.stft(x, 1024, STEP, 1024, WINDOW, center=False, return_complex=True).abs()[:, :n]
    m = (FB @ s).T
    m = m / (m.sum(1).topk(max(n // 3, 1)).values.mean() / 40 + 1e-9)
    return m.clamp(min=3e-3).log().numpy()


@njit(cache=True)
def warp(a, b):
    """Dynamic time warping. -> the column of b for each column of a (the middle of those that fit), cost per step."""
    n, m = len(a), len(b)
    cost = np.full((n + 1, m + 1), 1e30)
    back = np.zeros((n + 1, m + 1), np.int8)
    cost[0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            d = 0.0
            for k in range(a.shape[1]):
                d += abs(a[i - 1, k] - b[j - 1, k])
            best, way = cost[i - 1, j - 1] + d, 0
            if cost[i - 1, j] + 1.1 * d < best:
                best, way = cost[i - 1, j] + 1.1 * d, 1
            if cost[i, j - 1] + 1.1 * d < best:
                best, way = cost[i, j - 1] + 1.1 * d, 2
            cost[i, j], back[i, j] = best, way
    low, high = np.full(n, m), np.zeros(n, np.int64)
    i, j = n, m
    while i > 0 and j > 0:
        low[i - 1], high[i - 1] = min(low[i - 1], j - 1), max(high[i - 1], j - 1)
        way = back[i, j]
        i -= way != 2
        j -= way != 1
    return (low + high) // 2, cost[n, m] / (n + m) / a.shape[1]


def silence(columns):
    return np.full((columns, 40), np.log(3e-3), np.float32)


def words_of(phonemes):
    """Which word each character of a phoneme string belongs to; -1 for marks and spaces."""
    n, out = 0, []
    for c in phonemes:
        n += c == " "
        out.append(-1 if c in MARKS else n)
    return out


def carried_over(sound, speech):
    """What sounds in each quarter of each frame of `sound`, after the teacher's `speech`. -> index of it, cost"""
    samples, _, at = speech
    theirs = spectrogram(samples)
    at = at[: len(theirs)]
    at = np.concatenate([np.full(LEAD, -1), at, np.full(LEAD + len(theirs) - len(at), -1)])
    theirs = np.concatenate([silence(LEAD), theirs, silence(LEAD)])
    path, cost = warp(spectrogram(sound), theirs)
    quarter = HOP // PARTS // STEP
    fine = at[np.minimum(path, len(at) - 1)][quarter // 2 :: quarter]
    return fine, cost


def stretched(at, phonemes, frames):
    """The same without samples: the teacher's timing, as long as the voice's."""
    spoken = np.array([c not in MARKS for c in phonemes] + [False])[at]
    sounds = np.nonzero(spoken)[0]
    at = at[sounds[0] : sounds[-1] + 1]
    n, begin = frames * PARTS, BEGIN * PARTS * SR / HOP
    k = (np.arange(n) + 0.5 - begin) / max(n - begin - REST * PARTS * SR / HOP, 1) * len(at)
    fine = at[np.clip(k, 0, len(at) - 1).astype(int)]
    return np.where((k < 0) | (k >= len(at)), -1, fine)


def labels(fine, phonemes, frames):
    """-> lab, word: [frames, PARTS]"""
    fine = np.pad(fine, (0, max(frames * PARTS - len(fine), 0)), constant_values=-1)[: frames * PARTS]
    words = words_of(phonemes)
    word = np.array(words + [-1], np.int16)[fine]
    # A stress mark sounds as the vowel behind it.
    plain = [ord(next((d for d in phonemes[k:] if d not in STRESS), " ")) for k in range(len(phonemes))]
    lab = np.array([p if w >= 0 else 0 for p, w in zip(plain, words)] + [0], np.int32)[fine]
    return lab.reshape(-1, PARTS), word.reshape(-1, PARTS)


def main():
    ap = argparse.ArgumentParser()
    [ap.add_argument(x) for x in ("checkpoint", "text", "out")]
    ap.add_argument("--hibari", default=None)
    ap.add_argument("--limit", type=int, default=2400, help="texts")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--device", default="cpu")
    ap.add_argument("--warp", action="store_true", help="labels by warping, not by the teacher's durations alone")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    voice, reader, R = Voice(a.checkpoint, a.device), Reader(a.hibari), random.Random(a.seed)
    texts = list(enumerate(open(f"{a.text}/texts.txt").read().split("\n")[:-1]))
    texts = [(i, t) for i, t in texts if 12 <= len(t) <= 110 and len(t.split()) > 2]
    groups = {}
    for i, t in R.sample(texts, min(a.limit, len(texts))):
        groups.setdefault(len(voice.ids.enc("Say: " + t)), []).append((i, t))
    jobs = [g[k : k + a.batch] for g in groups.values() for k in range(0, len(g), a.batch)]
    R.shuffle(jobs)
    for k, job in enumerate(jobs):
        path = f"{a.out}/part_{k:05d}"
        if os.path.exists(path + ".json"):
            continue
        who = R.choice(list(SPEAKERS))
        rng, noise = torch.Generator(a.device).manual_seed(1000 * a.seed + k), np.random.default_rng(k)
        said = voice.speak([t for _, t in job], who, rng)
        spoken = [(i, t, c) for (i, t), c in zip(job, said) if c is not None]
        meta, arrays, first = [], [], 0
        # A voice that has hardly learnt anything may end none of a part's texts.
        sounds = voice.samples([c for *_, c in spoken]) if a.warp and spoken else [None] * len(spoken)
        for (i, t, codes), sound in zip(spoken, sounds):
            said, n, cost = reader.phonemes(t), len(codes), 0.0
            if said is None:
                continue
            if a.warp:
                fine, cost = carried_over(np.pad(sound, (0, n * HOP - len(sound))), reader.read(t, who, noise))
            else:
                fine = stretched(reader.timing(*said, who), said[0], n)
            arrays.append((codes.astype(np.int16), *labels(fine, said[0], n)))
            meta.append([i, who, first, n, round(float(cost), 4), said[0]])
            first += n
        if meta:
            codes, lab, word = (np.concatenate(x) for x in zip(*arrays))
            np.savez(path + ".npz", codes=codes, lab=lab, word=word)
        json.dump(meta, open(path + ".tmp", "w"))
        os.rename(path + ".tmp", path + ".json")
        print(f"[aligned] {k + 1}/{len(jobs)} parts, {first * HOP / SR:.0f} s more", flush=True)
    print("[aligned] done", flush=True)


if __name__ == "__main__":
    main()
