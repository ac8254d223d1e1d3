"""What the talker learns from, as flat arrays, and batches planned from them as indices.

A batch is B sequences of L rows, laid out as the reference's generate() lays them out; B * L is the same for all. Workers
plan batches on the CPU; codes and phonemes stay on the training device and are looked up there.
"""

import glob, json, os, random, time
import numpy as np, torch
from torch.utils.data import IterableDataset
from nets import BOS_C, Ids, NOTHINK, PAD_C, THINK_BOS, THINK_EOS, codec
from train_thinker import SAY

SPELL = 10  # phonemes of a word that are asked for
NONE, END = -1, -2  # no frame; the end of the speech
LENGTHS = (96, 120, 128, 160, 192, 240, 256, 320, 384, 480, 512, 640, 768)  # rows of a sequence; all divide ROWS
ROWS = 3840
MAX_FRAMES = 400  # sentences are joined up to this: 32 s
# How often each kind of text (texts.py) is drawn, and each voice.
KINDS = {"e": 0.27, "t": 0.17, "g": 0.22, "r": 0.22, "l": 0.09, "a": 0.03}
VOICES = (0.4, 0.3, 0.3)


class Corpus:
    """All texts as tokens in one array, each as it begins an answer and as it follows a space, and for the last token of a
    word how the teacher pronounces that word."""

    def __init__(self, folder):
        self.ids = Ids(folder)
        lines = lambda name: open(f"{folder}/{name}").read().split("\n")[:-1]
        texts, said = lines("texts.txt"), lines("words.txt")
        self.kinds = open(f"{folder}/kinds.txt").read()
        assert len(texts) == len(said) == len(self.kinds), f"{folder}: texts, words and kinds belong together"
        symbols = {c: i for i, c in enumerate(sorted(set("".join(said)) - {" "}), 1)}
        self.symbols, self.words = len(symbols) + 1, []  # 0: the word is over
        number, tokens, word, self.span = {}, [], [], []
        for space in ("", " "):
            for text, spoken, e in zip(texts, said, self.ids.tok.encode_batch([space + t for t in texts])):
                self.span.append((len(tokens), len(tokens) + len(e.ids)))
                tokens += e.ids
                if not spoken:
                    word += [NONE] * len(e.ids)
                    continue
                at, ends = len(space), {}
                for w, s in zip(text.split(), spoken.split()):
                    at = (space + text).index(w, at) + len(w)
                    ends[at] = s
                for _, end in e.offsets:
                    s = ends.get(end)
                    if s is not None and s not in number:
                        number[s] = len(number)
                        k = [symbols[c] for c in s[:SPELL]] + [0]
                        self.words.append((k + [255] * SPELL)[:SPELL])
                    word.append(NONE if s is None else number[s])
        self.texts = len(texts)
        self.tokens, self.word = np.array(tokens, np.int16), np.array(word, np.int32)
        self.words = torch.tensor(self.words, dtype=torch.uint8)
        enc = lambda s: np.array(self.ids.enc(s), np.int16)
        self.prompts = [enc(json.loads(line)["q"]) for line in lines("tasks.jsonl")]
        self.say = [enc(s[:-3]) for s in SAY if s.endswith(" {}")]
        i = self.ids
        self.open, self.close = np.array([i.im_start, i.user, i.nl], np.int16), np.array([i.im_end, i.nl], np.int16)
        self.answer = np.array([i.im_start, i.assistant, i.nl] + [i.pad] * 4 + [i.bos], np.int16)

    def text(self, i, space=True):
        a, b = self.span[i + (self.texts if space else 0)]
        return self.tokens[a:b], self.word[a:b]


class Speech:
    """Codes as encode.py makes them, on the training device; which utterances there are is shared with the workers."""

    def __init__(self, folder, corpus, device, hours=720):
        self.folder, self.corpus, self.seen, self.frames = folder, corpus, set(), 0
        self.codes = torch.zeros(int(hours * 3600 * 12.5), 8 + 3, dtype=torch.int16, device=device)
        self.rows = torch.zeros(
            int(hours * 3600), 4, dtype=torch.int32
        ).share_memory_()  # text, voice, first frame, frames
        self.count = torch.zeros(1, dtype=torch.int64).share_memory_()
        self.held = []  # utterances of every 199th text, which nobody trains on

    def poll(self):
        """Takes in the parts that are new. -> hours in all"""
        for j in sorted(set(glob.glob(f"{self.folder}/part_*.json")) - self.seen):
            c = torch.from_numpy(np.load(j[:-5] + ".codes.npy"))
            new = [(t, v, self.frames + a, n) for t, v, a, n in json.load(open(j)) if 4 <= n <= 150]
            self.held += [x for x in new if x[0] % 199 == 7]
            new = [x for x in new if x[0] % 199 != 7]
            n = int(self.count)
            if self.frames + len(c) > len(self.codes) or n + len(new) > len(self.rows):
                break
            self.seen.add(j)
            self.codes[self.frames : self.frames + len(c)] = c.to(self.codes.device)
            self.frames += len(c)
            if new:
                self.rows[n : n + len(new)] = torch.tensor(new, dtype=torch.int32)
                self.count += len(new)
        return self.frames / 12.5 / 3600

    def wait(self, hours):
        while self.poll() < hours and not os.path.exists(f"{self.folder}/DONE"):
            time.sleep(0.5)


class Plan:
    """Draws sequences and lays them out."""

    def __init__(self, corpus, speech, rows, seed):
        assert rows % ROWS == 0, f"rows per batch: a multiple of {ROWS}"
        self.c, self.s, self.rows, self.r, self.known = corpus, speech, rows, random.Random(seed), 0
        self.by = {(v, k): [] for v in range(len(VOICES)) for k in KINDS}
        self.cum = np.cumsum(list(KINDS.values())).tolist()

    def voice(self):
        return self.r.choices(range(len(VOICES)), VOICES)[0]

    def draw(self, voice):
        while True:
            (kind,) = self.r.choices(list(KINDS), cum_weights=self.cum)
            some = self.by[voice, kind]
            if some:
                return self.r.choice(some)
            if not any(self.by[voice, k] for k in KINDS):
                voice = self.voice()

    def learn(self):
        n = int(self.s.count)
        for x in self.s.rows[self.known : n].tolist():
            self.by[x[1], self.c.kinds[x[0]]].append(x)
        self.known = n

    def user(self, texts):
        c, r, p = self.c, self.r, self.r.random()
        if p < 0.68:
            prefix = c.say[0] if p < 0.45 else r.choice(c.say)
            return [(prefix, None)] + [c.text(t) for t in texts]
        if p < 0.86:
            return [(r.choice(c.prompts), None)]
        if p < 0.97:
            return [c.text(r.randrange(c.texts), False)]
        return []

    def sequence(self, utterance=None):
        """-> [(tokens, words)] of the prefill, of the text, [(first frame, frames)], voice"""
        c, r = self.c, self.r
        chosen = [utterance or self.draw(self.voice())]
        voice = chosen[0][1]
        if utterance is None and r.random() < 0.25:
            most, total = (r.randint(2, 5) if r.random() < 0.7 else 16), chosen[0][3]
            while len(chosen) < most:
                x = self.draw(voice)
                if x[1] != voice or total + x[3] > MAX_FRAMES:
                    break
                chosen.append(x)
                total += x[3]
        texts = [x[0] for x in chosen]
        if utterance is not None:
            before = [(c.open, None), (c.say[0], None), c.text(texts[0]), (c.close, None)]
        else:
            before = [(c.open, None), *self.user(texts), (c.close, None)]
            if r.random() < 0.08:
                before = [(c.open, None), (r.choice(c.prompts), None), (c.close, None), *before]
        said = [c.text(texts[0], False)] + [c.text(t) for t in texts[1:]]
        return before + [(c.answer, None)], said, [(x[2], x[3]) for x in chosen], voice

    def lay(self, sequences, L):
        """-> the batch: text ids, codec ids [B, L]; frame fed, frame to be said [B, L]; word [B, L]; rows with a frame to be
        said and then those with the end; rows with a word"""
        B = len(sequences)
        tx = np.full((B, L), self.c.ids.pad, np.int16)
        cid = np.full((B, L), NONE, np.int16)
        fed, due, word = (np.full((B, L), NONE, np.int32) for _ in range(3))
        for b, (before, said, speech, voice) in enumerate(sequences):
            n = 0
            for tokens, words in before:
                tx[b, n : n + len(tokens)] = tokens
                if words is not None:
                    word[b, n : n + len(tokens)] = words
                n += len(tokens)
            frames = sum(k for _, k in speech)
            cid[b, n - 5 : n + 1] = (NOTHINK, THINK_BOS, THINK_EOS, codec(2301 + voice), PAD_C, BOS_C)
            tokens, words = (np.concatenate(x)[: frames + 1] for x in zip(*said))
            tx[b, n : n + len(tokens)] = tokens
            word[b, n : n + len(tokens)] = words
            if len(tokens) <= frames:
                tx[b, n + len(tokens)] = self.c.ids.eos
            for a, k in speech:
                due[b, n : n + k] = np.arange(a, a + k)
                n += k
            due[b, n] = END
            fed[b, n - frames + 1 : n + 1] = due[b, n - frames : n]
        flat = due.reshape(-1)
        say, end = np.flatnonzero(flat >= 0), np.flatnonzero(flat == END)
        arrays = (tx, cid, fed, due, word, np.concatenate([say, end]), np.flatnonzero(word.reshape(-1) >= 0))
        return [torch.from_numpy(x) for x in arrays] + [len(say)]

    def length(self, sequence):
        """Rows: the prefill, its last one with the first token, and the frames."""
        before, _, speech, _ = sequence
        n = sum(len(t) for t, _ in before) + 1 + sum(k for _, k in speech)
        return next((k for k in LENGTHS if n <= k), None)


class Batches(IterableDataset):
    def __init__(self, corpus, speech, rows, seed):
        self.args, self.seed = (corpus, speech, rows), seed

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        plan = Plan(*self.args, self.seed + (worker.id if worker else 0) * 7919)
        waiting, n = {L: [] for L in LENGTHS}, 0
        while True:
            if n % 2000 == 0:
                plan.learn()
            n += 1
            x = plan.sequence()
            L = plan.length(x)
            if L is None:
                continue
            waiting[L].append(x)
            if len(waiting[L]) == plan.rows // L:
                yield plan.lay(waiting[L], L)
                waiting[L] = []
