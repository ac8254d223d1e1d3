"""The ears: an audio tower as Qwen3-Omni has it, and a thinker that reads what the tower hears.

    python train_ears.py TEXT_DIR SAID_DIR CHECKPOINT OUT_DIR --minutes 20 [--device cuda] [--judge JUDGED_DIR] [--init ears.pt]
    torchrun --nproc_per_node N train_ears.py ...

Begins with the thinker of CHECKPOINT, whose embeddings stay what they are (the talker reads them). SAID_DIR is what said.py
leaves, also while it is being made; each process takes its share of the parts and keeps it on its GPU, where every
utterance is damaged at random: another speed, a room, colored noise, other voices, tones, a band, an equalizer, a level,
clipping. The thinker is asked to answer a question, to repeat what follows "say", to write down what it heard, and, where
there is nothing but noise, tones or silence, to say that it did not understand; with earlier turns, of sound or text, and
among its typed tasks of before (train_thinker.py). Losses: cross entropy of answers; CTC of the words on the tower's rows
(by a layer that is not kept), which comes first and fades; a hundredth of the experts' load balance.

Writes OUT_DIR/ears.pt: {"tower", "thinker"}, averages over time. --judge: what is understood of voices that were never heard.
"""

import argparse, glob, json, math, os, random, threading, queue, time
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset
from muon import Muon
from nets import Ids, TH, Thinker, VOCAB, World, from_hf
from train_thinker import SYS, Tasks, check

SR, HOP, N_FFT, BINS = 16000, 160, 400, 128
CHUNK, TOKENS, WINDOW = 100, 13, 8  # frames of a chunk, its tokens, chunks that attend to each other (8 s)
EARS = dict(d=256, layers=8, heads=4, ffn=1024, channels=96)
SORRY = "Sorry, I did not understand that."
ASK = ["Transcribe the audio into text."] * 6 + [
    "Transcribe the audio.", "Transcribe this.", "What did I say?", "Write down what I said.", "Transcribe the recording.",
    "Please transcribe.", 'Transcribe the audio into text. Its language is "en".',
]  # fmt: skip


def tokens_of(frames):
    """Rows of the tower for so many frames of the spectrum."""
    return TOKENS * (frames // CHUNK) + -(-(frames % CHUNK) // 8)


class Tower(nn.Module):
    """Qwen3-Omni's audio encoder; the names are those of its checkpoint."""

    def __init__(self, e=EARS):
        super().__init__()
        d, c = e["d"], e["channels"]
        self.heads = e["heads"]
        self.conv2d1, self.conv2d2, self.conv2d3 = (nn.Conv2d(i, c, 3, 2, 1) for i in (1, c, c))
        self.conv_out = nn.Linear(c * BINS // 8, d, bias=False)
        self.layers = nn.ModuleList(TowerLayer(d, e["ffn"]) for _ in range(e["layers"]))
        self.ln_post, self.proj1, self.proj2 = nn.LayerNorm(d), nn.Linear(d, d), nn.Linear(d, TH["hidden"])
        at = torch.exp(-math.log(10000) / (d // 2 - 1) * torch.arange(d // 2))
        at = torch.arange(TOKENS)[:, None] * at[None]
        self.register_buffer("at", torch.cat([at.sin(), at.cos()], 1), persistent=False)

    def forward(self, mel, frames):
        """mel [B, bins, chunks * 100], zero behind a clip's frames; frames [B] -> rows [B, chunks * 13, hidden]; of clip b the
        first tokens_of(frames[b]) count"""
        B, _, L = mel.shape
        n = L // CHUNK
        x = mel.view(B, BINS, n, CHUNK).transpose(1, 2).reshape(B * n, 1, BINS, CHUNK)
        for conv in (self.conv2d1, self.conv2d2, self.conv2d3):
            x = F.gelu(conv(x))
        x = self.conv_out(x.permute(0, 3, 1, 2).flatten(2)) + self.at  # [B * n, 13, d]
        w = -(-n // WINDOW)
        x = F.pad(x.view(B, n, TOKENS, -1), (0, 0, 0, 0, 0, (w * WINDOW - n) if w > 1 else 0))
        x = x.reshape(B * w, -1, x.shape[-1])
        count = TOKENS * (frames // CHUNK) + (frames % CHUNK + 7) // 8
        seen = torch.arange(x.shape[0] // B * x.shape[1], device=x.device)[None] < count[:, None]
        mask = seen.view(B * w, 1, 1, -1)
        mask = mask | ~mask.any(-1, keepdim=True)  # a window with nothing in it attends to itself
        for layer in self.layers:
            x = layer(x, self.heads, mask)
        x = self.proj2(F.gelu(self.proj1(self.ln_post(x))))
        return x.view(B, -1, x.shape[-1])[:, : n * TOKENS]


class TowerLayer(nn.Module):
    def __init__(self, d, ffn):
        super().__init__()
        self.self_attn = nn.ModuleDict({k: nn.Linear(d, d) for k in ("q_proj", "k_proj", "v_proj", "out_proj")})
        self.self_attn_layer_norm, self.final_layer_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.fc1, self.fc2 = nn.Linear(d, ffn), nn.Linear(ffn, d)

    def forward(self, x, heads, mask):
        y, a = self.self_attn_layer_norm(x), self.self_attn
        q, k, v = (a[p](y).unflatten(-1, (heads, -1)).transpose(1, 2) for p in ("q_proj", "k_proj", "v_proj"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        x = x + a["out_proj"](y)
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))


class Spectrum(nn.Module):
    """Whisper's log-mel features, as the checkpoint's preprocessor has them."""

    def __init__(self):
        super().__init__()
        from transformers.audio_utils import mel_filter_bank

        bank = mel_filter_bank(1 + N_FFT // 2, BINS, 0.0, 8000.0, SR, norm="slaney", mel_scale="slaney")
        self.register_buffer("bank", torch.tensor(bank, dtype=torch.float32).T.contiguous(), persistent=False)
        self.register_buffer("window", torch.hann_window(N_FFT), persistent=False)

    def forward(self, x, n):
        """x [B, N] samples, zero behind the n [B] that count -> mel [B, bins, whole chunks], frames [B]"""
        s = torch.stft(x, N_FFT, HOP, window=self.window, return_complex=True)[..., :-1].abs() ** 2
        m = (self.bank @ s).clamp(min=1e-10).log10()
        frames = n // HOP
        seen = (torch.arange(m.shape[-1], device=x.device)[None] < frames[:, None])[:, None]
        top = m.masked_fill(~seen, -100).amax((1, 2), keepdim=True)
        m = ((torch.maximum(m, top - 8) + 4) / 4).masked_fill(~seen, 0)
        return F.pad(m, (0, -m.shape[-1] % CHUNK)), frames


class Damage(nn.Module):
    """What lies between a mouth and a microphone, at random. Everything linear is one product of spectra."""

    def __init__(self, seed, device):
        super().__init__()
        self.g, self.r, self.dev = torch.Generator(device).manual_seed(seed), random.Random(seed), device

    def u(self, *shape, lo=0.0, hi=1.0):
        return lo + (hi - lo) * torch.rand(*shape, generator=self.g, device=self.dev)

    def n(self, *shape):
        return torch.randn(*shape, generator=self.g, device=self.dev)

    def noise(self, B, N):
        """Colored noise [B, N] of unit power."""
        spectrum = torch.fft.rfft(self.n(B, N))
        f = torch.arange(spectrum.shape[1], device=self.dev) + 20.0
        x = torch.fft.irfft(spectrum * (f / f[-1]) ** -self.u(B, 1, lo=-0.3, hi=1.3), N)
        slow = F.interpolate(self.u(B, 1, 12, lo=0.2, hi=1.0), N, mode="linear")[:, 0]
        x = torch.where(self.u(B, 1) < 0.4, x * slow, x)
        return x / (x.pow(2).mean(1, keepdim=True).sqrt() + 1e-9)

    def tones(self, B, N):
        """Chords that come and go, like music, of unit power."""
        t = torch.arange(N, device=self.dev) / SR
        x = torch.zeros(B, N, device=self.dev)
        for _ in range(5):
            pitch = 55 * 2 ** (self.u(B, 8) * 5)
            notes = pitch.repeat_interleave(-(-N // 8), 1)[:, :N]
            phase = (notes / SR).cumsum(1) * 2 * math.pi
            x += (phase.sin() + self.u(B, 1) * (2 * phase).sin() + self.u(B, 1) * (3 * phase).sin()) * self.u(B, 1)
        x = x * (0.4 + 0.6 * ((t * 2 * math.pi)[None] * self.u(B, 1, lo=0.2, hi=6) + 6 * self.u(B, 1)).sin().abs())
        return x / (x.pow(2).mean(1, keepdim=True).sqrt() + 1e-9)

    def forward(self, x, n, least=None, hard=True):
        """x [B, N] with n [B] samples each. -> the same, damaged. least: dB of noise below the speech, at least"""
        B, N = x.shape
        power = (x.pow(2).sum(1, keepdim=True) / n[:, None]).sqrt() + 1e-6
        nf = 1 << (N + SR // 2 - 1).bit_length()
        spectrum = torch.fft.rfft(x, nf)
        # a room: a first sound, then noise that dies away
        k = SR // 2
        t = torch.arange(k, device=self.dev) / SR
        tail = self.n(B, k) * torch.exp(-6.9 * t[None] / self.u(B, 1, lo=0.08, hi=0.7)) * (t > 0.002)
        tail = tail / (tail.pow(2).sum(1, keepdim=True).sqrt() + 1e-9) * 10 ** (self.u(B, 1, lo=-26, hi=0) / 20)
        room = F.pad(tail * (self.u(B, 1) < 0.65), (0, nf - k))
        room[:, 0] += 1
        # a band and an equalizer
        f = torch.arange(nf // 2 + 1, device=self.dev) * (SR / nf)
        low = torch.where(self.u(B, 1) < 0.3, self.u(B, 1, lo=2800, hi=7000), 2e4)
        high = torch.where(self.u(B, 1) < 0.4, self.u(B, 1, lo=50, hi=350), 1.0)
        band = (1 + (f[None] / low) ** 12) ** -0.5 * (1 + (high / (f[None] + 1)) ** 6) ** -0.5
        curve = F.interpolate(self.n(B, 1, 9) * self.u(B, 1, 1, lo=0, hi=5), nf // 2 + 1, mode="linear", align_corners=True)[:, 0]
        x = torch.fft.irfft(spectrum * torch.fft.rfft(room) * band * 10 ** (curve / 20), nf)[:, :N]
        now = (x.pow(2).sum(1, keepdim=True) / n[:, None]).sqrt() + 1e-6
        x = x * (power / now)
        # what else is heard
        quiet = self.u(B, 1, lo=0, hi=45) if hard else self.u(B, 1, lo=15, hi=50)
        x = x + self.noise(B, N) * power * 10 ** (-quiet / 20)
        if hard:
            other = x.roll(1, 0) + x.roll(2, 0) + (x.roll(3, 0) if B > 3 else 0)
            other = other / (other.pow(2).mean(1, keepdim=True).sqrt() + 1e-6) * power
            x = x + other * (self.u(B, 1) < 0.12) * 10 ** (-self.u(B, 1, lo=8, hi=25) / 20)
            x = x + self.tones(B, N) * power * (self.u(B, 1) < 0.08) * 10 ** (-self.u(B, 1, lo=5, hi=25) / 20)
        clip = torch.where(self.u(B, 1) < 0.08, self.u(B, 1, lo=1.5, hi=4) * power, 1e3 * power)
        x = torch.maximum(torch.minimum(x, clip), -clip)
        x = x / power * 10 ** (self.u(B, 1, lo=-45, hi=-14) / 20)
        return (x.clamp(-1, 1) * 32767).round() / 32767

    def nothing(self, B, N):
        """No speech: silence, noise, tones, clicks."""
        kind, x = self.u(B, 1), self.noise(B, N)
        x = torch.where(kind < 0.5, x, self.tones(B, N))
        clicks = (self.u(B, N) < 2e-4).float() * self.n(B, N) * 20
        x = torch.where(kind > 0.9, clicks, x)
        return x * 10 ** (self.u(B, 1, lo=-90, hi=-12) / 20)


class Sounds:
    """Utterances of this process, on its device; which ones there are, by kind."""

    def __init__(self, folder, world, device, hours):
        self.folder, self.W, self.dev = folder, world, device
        self.pcm = torch.zeros(int(hours * 3600 * SR), dtype=torch.int16, device=device)
        self.end, self.known, self.rows = 0, set(), []
        while not os.path.exists(f"{folder}/lines.jsonl"):
            time.sleep(0.5)
        self.lines = [json.loads(l) for l in open(f"{folder}/lines.jsonl")]
        self.by = {k: [] for k in "qst"}
        self.lock = threading.Lock()

    def poll(self):
        """Takes in the parts that are new. -> hours here"""
        for path in sorted(set(glob.glob(f"{self.folder}/part_*.json")) - self.known):
            if int(path[-10:-5]) % self.W.size != self.W.rank:
                self.known.add(path)
                continue
            pcm = torch.from_numpy(np.load(path[:-5] + ".npy"))
            if self.end + len(pcm) > len(self.pcm):
                break
            self.known.add(path)
            self.pcm[self.end : self.end + len(pcm)] = pcm.to(self.dev)
            with self.lock:
                for line, voice, at, n in json.load(open(path)):
                    if n >= SR // 3:
                        self.by[self.lines[line]["kind"]].append(len(self.rows))
                        self.rows.append((line, self.end + at, n))
            self.end += len(pcm)
        return self.end / SR / 3600

    def wait(self, hours):
        while self.poll() < hours and not os.path.exists(f"{self.folder}/DONE"):
            time.sleep(0.5)

    def take(self, rows, lead, tail, to=None):
        """Samples of these rows with `lead` and `tail` samples of nothing around each. -> [B, N], n [B]"""
        at = torch.tensor([self.rows[i][1] for i in rows], device=self.dev)
        n = torch.tensor([self.rows[i][2] for i in rows], device=self.dev)
        lead, whole = torch.tensor(lead, device=self.dev), torch.tensor(lead, device=self.dev) + n + torch.tensor(tail, device=self.dev)
        N = to or -(-int(whole.max()) // SR) * SR
        k = torch.arange(N, device=self.dev)[None] - lead[:, None]
        x = self.pcm[(at[:, None] + k.clamp(min=0)).clamp(max=len(self.pcm) - 1)].float() / 32768
        return x * ((k >= 0) & (k < n[:, None])), whole.clamp(max=N)


class Plan:
    """Draws conversations: token ids with a place for each sound, which tokens are answers, and the sounds."""

    def __init__(self, sounds, folder, seed):
        self.s, self.r, self.typed = sounds, random.Random(seed), Tasks(folder, seed)
        self.ids = self.typed.ids
        t = self.ids.tok.token_to_id
        self.start, self.pad, self.stop = t("<|audio_start|>"), t("<|audio_pad|>"), t("<|audio_end|>")
        self.cache = {}

    def enc(self, text):
        if text not in self.cache:
            self.cache[text] = self.ids.enc(text)
        return self.cache[text]

    def frames(self, row, lead, tail, speed):
        """Frames of the spectrum once the sound has its speed."""
        return int((self.s.rows[row][2] + lead + tail) / speed) // HOP

    def turn(self, sounds, speed):
        """-> ids of the user's turn, the answer's text; adds to `sounds` (row or None, lead, tail, frames, words)"""
        r, s, p = self.r, self.s, self.r.random()
        lead, tail = int(r.uniform(0.02, 0.6) * SR), int(r.uniform(0.02, 0.5) * SR)
        if p < 0.05:
            frames = r.randint(30, 500)
            sounds.append((None, 0, 0, frames, []))
            body = [self.start] + [self.pad] * tokens_of(frames) + [self.stop]
            if r.random() < 0.25:
                return body + self.enc(r.choice(ASK)), ""
            return body, SORRY
        kind = "q" if p < 0.50 else "s" if p < 0.68 else "t"
        row = r.choice(s.by[kind])
        line, frames = s.lines[s.rows[row][0]], self.frames(row, lead, tail, speed)
        sounds.append((row, lead, tail, frames, self.enc(line["label"])))
        body = [self.start] + [self.pad] * tokens_of(frames) + [self.stop]
        asked = r.random() < (0.12 if kind == "q" else 0.1 if kind == "s" else 0.9)
        if asked:
            ask = self.enc(r.choice(ASK))
            return (body + ask if r.random() < 0.85 else ask + body), line["label"]
        return body, line["answer"] or (self.typed.fb[0] if r.random() < 0.6 else r.choice(self.typed.fb))

    def conversation(self, speed, most):
        I, r = self.ids, self.r
        while True:
            ids, answer, sounds, system = [], [], [], r.choice(SYS)
            if system is not None:
                ids += [I.im_start, I.system, I.nl, *I.enc(system), I.im_end, I.nl]
            turns = 1 if r.random() < 0.72 else r.randint(2, 8)
            answer += [0] * len(ids)
            for k in range(turns):
                if k + 1 < turns and r.random() < 0.25:
                    q, a = self.typed.qa()
                    body = I.enc(q)
                else:
                    body, a = self.turn(sounds, speed)
                p = [I.im_start, I.user, I.nl, *body, I.im_end, I.nl, I.im_start, I.assistant, I.nl]
                t = [*self.enc(a), I.im_end] if a else [I.im_end]
                ids += p + t + [I.nl]
                answer += [0] * len(p) + [1] * len(t) + [0]
            if len(ids) <= most and sounds and all(x[3] <= 1000 for x in sounds):
                return ids, answer, sounds

    def batch(self, clips, most):
        """Conversations with about so many sounds, and typed ones. -> speed, [conversation]"""
        r = self.r
        speed = r.choice([0.85, 0.9, 0.95, 1.0, 1.0, 1.0, 1.05, 1.1, 1.2])
        out, n = [], 0
        with self.s.lock:
            while n < clips:
                c = self.conversation(speed, most)
                out.append(c)
                n += len(c[2])
        for _ in range(len(out) // 3):
            ids, mask = self.typed.sample()
            if len(ids) <= most:
                out.append((ids, mask, []))
        out.sort(key=lambda c: len(c[0]))
        return speed, out


def hear(ears, spectrum, damage, sounds, speed, clips, parts=4):
    """The clips as rows of the tower, [clips, rows of the longest, hidden]; short and long ones apart, so that little is
    padding."""
    order = sorted(range(len(clips)), key=lambda i: clips[i][3])
    size, found = -(-len(clips) // parts), []
    for at in range(0, len(clips), size):
        found.append(hear_alike(ears, spectrum, damage, sounds, speed, [clips[i] for i in order[at : at + size]]))
    most = max(x.shape[1] for x in found)
    back = torch.tensor(np.argsort(order), device=sounds.dev)
    return torch.cat([F.pad(x, (0, 0, 0, most - x.shape[1])) for x in found])[back]


def hear_alike(ears, spectrum, damage, sounds, speed, clips, hard=True):
    """The clips as rows of the tower, all padded to the longest."""
    dev = sounds.dev
    heard = [c for c in clips if c[0] is not None]
    none = [c for c in clips if c[0] is None]
    longest = max(c[3] for c in clips) * HOP
    N = -(-longest // SR) * SR
    n = torch.tensor([c[3] * HOP for c in clips], device=dev)
    x = torch.zeros(len(clips), N, device=dev)
    if heard:
        before = int(round(N * speed / 200)) * 200
        w, m = sounds.take([c[0] for c in heard], [c[1] for c in heard], [c[2] for c in heard], before)
        if before != N:  # another speed, by FFT
            w = torch.fft.irfft(torch.fft.rfft(w)[:, : min(before, N) // 2 + 1], N) * (N / before)
        m = torch.tensor([c[3] * HOP for c in heard], device=dev)
        w = damage(w, m, hard=hard) if damage else w
        x[[i for i, c in enumerate(clips) if c[0] is not None]] = w
    if none:
        x[[i for i, c in enumerate(clips) if c[0] is None]] = damage.nothing(len(none), N)
    x = x * (torch.arange(N, device=dev)[None] < n[:, None])
    mel, frames = spectrum(x, n)
    if hard and damage:  # bands and moments that are missing
        B, r = len(clips), damage
        for size, axis in ((18, 1), (18, 1), (22, 2)):
            whole = mel.shape[axis]
            at, width = r.u(B, 1) * whole, r.u(B, 1) * size * (r.u(B, 1) < 0.5)
            k = torch.arange(whole, device=dev)[None]
            hole = (k >= at) & (k < at + width)
            mel = mel.masked_fill(hole[:, :, None] if axis == 1 else hole[:, None], 0)
    return ears(mel, frames)


def lay(conversations, dev):
    """-> ids [B, L], targets [B, L] (-100: none)"""
    L = -(-max(len(c[0]) for c in conversations) // 32) * 32
    x, y = np.zeros((len(conversations), L), np.int64), np.full((len(conversations), L), -100, np.int64)
    for b, (ids, answer, _) in enumerate(conversations):
        x[b, : len(ids)] = ids
        lab = np.array(ids)
        lab[np.array(answer) == 0] = -100
        y[b, : len(ids) - 1] = lab[1:]
    return torch.from_numpy(x).to(dev), torch.from_numpy(y).to(dev)


def embed(thinker, x, pad, rows, clips):
    """Embeddings of ids [B, L] with the clips' rows, in order, where pads stand."""
    e = thinker.embed_tokens(x)
    if rows is None:
        return e
    flat = torch.cat([rows[i, : tokens_of(c[3])] for i, c in enumerate(clips)])
    return e.masked_scatter((x == pad)[..., None].expand_as(e), flat.to(e.dtype))


class Ears(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower, self.thinker = Tower(), Thinker()
        self.ctc = nn.Linear(TH["hidden"], VOCAB + 1)


def losses(m, plan, spectrum, damage, sounds, speed, conversations, think):
    clips = [s for c in conversations for s in c[2]]
    rows = hear(m.tower, spectrum, damage, sounds, speed, clips)
    out = {}
    said = [(i, c) for i, c in enumerate(clips) if c[4] and len(c[4]) < tokens_of(c[3])]
    logp = m.ctc(rows[[i for i, _ in said]]).float().log_softmax(-1).transpose(0, 1)
    words = torch.tensor([t for _, c in said for t in c[4]], device=rows.device)
    out["ctc"] = F.ctc_loss(
        logp, words, torch.tensor([tokens_of(c[3]) for _, c in said]), torch.tensor([len(c[4]) for _, c in said]),
        blank=VOCAB, zero_infinity=True,
    ) if said else rows.sum() * 0  # fmt: skip
    if think:
        # short and long conversations apart, so that little of a batch is padding
        total, right, count, aux, at = 0.0, 0, 0, 0.0, 0
        groups = [conversations[: len(conversations) * 3 // 4], conversations[len(conversations) * 3 // 4 :]]
        for group in filter(None, groups):
            n = sum(len(c[2]) for c in group)
            x, y = lay(group, rows.device)
            e = embed(m.thinker, x, plan.pad, rows[at : at + n] if n else None, clips[at : at + n])
            at += n
            h = m.thinker.stack(e)
            keep = y >= 0
            lg = m.thinker.lm_head(h[keep]).float()
            total = total + F.cross_entropy(lg, y[keep], reduction="sum")
            right += (lg.argmax(-1) == y[keep]).sum()
            count += int(keep.sum())
            aux = aux + m.thinker.stack.aux() / TH["layers"] / len(groups)
        out["answer"], out["right"], out["aux"] = total / count, right / count, aux
    return out


@torch.no_grad()
def generate(m, ids, rows, clips, pad, eos, most=60):
    """Greedy answers to prompts that end with the same token, each with one sound or none. -> token lists"""
    dev = rows.device
    L = max(len(x) for x in ids)
    out = [list(x) for x in ids]
    ends, e = [len(x) for x in ids], torch.zeros(len(ids), L + most, TH["hidden"], device=dev)
    for i, x in enumerate(ids):
        t = torch.tensor([x], device=dev)
        e[i, : len(x)] = embed(m.thinker, t, pad, rows[i : i + 1] if clips[i] else None, [clips[i]] if clips[i] else [])[0]
    said, live = [[] for _ in ids], set(range(len(ids)))
    for _ in range(most):
        top = max(ends)
        h = m.thinker.stack(e[:, :top])
        last = torch.tensor([n - 1 for n in ends], device=dev)
        pick = m.thinker.lm_head(h[torch.arange(len(ids), device=dev), last]).argmax(-1)
        new = m.thinker.embed_tokens(pick)
        for i, t in enumerate(pick.tolist()):
            if i in live:
                if t == eos:
                    live.discard(i)
                    continue
                said[i].append(t)
                e[i, ends[i]] = new[i]
                ends[i] += 1
        if not live:
            break
    return said


def errors(a, b):
    """Word errors of b against a (insertions, deletions, substitutions) and words of a."""
    from said import bare

    a, b = bare(a).split(), bare(b).split()
    d = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        p, d[0] = d[0], i
        for j, y in enumerate(b, 1):
            p, d[j] = d[j], min(d[j] + 1, d[j - 1] + 1, p + (x != y))
    return d[-1], len(a)


@torch.no_grad()
def judge(m, plan, spectrum, damage, folder, dev, noise=None):
    """Questions answered as typed ones are, words written down wrongly, by voice; sounds without speech left unanswered."""
    class One:
        rank, size = 0, 1

    s = Sounds(folder, One, dev, 3)
    s.poll()
    I, res = plan.ids, {}
    voice = {}
    for path in sorted(glob.glob(f"{folder}/part_*.json")):
        for line, v, _, n in json.load(open(path)):
            voice[line] = v
    typed = {}
    for part in range(0, len(s.rows), 64):
        rows = list(range(part, min(part + 64, len(s.rows))))
        lead, tail = [SR * 3 // 10] * len(rows), [SR // 5] * len(rows)
        clips = [(i, lead[0], tail[0], (s.rows[i][2] + lead[0] + tail[0]) // HOP, []) for i in rows]
        N = -(-max(c[3] for c in clips) * HOP // SR) * SR
        x, n = s.take(rows, lead, tail, N)
        n = torch.tensor([c[3] * HOP for c in clips], device=dev)
        power = (x.pow(2).sum(1, keepdim=True) / n[:, None]).sqrt()
        if noise is not None:
            x = x + damage.noise(len(rows), N) * power * 10 ** (-noise / 20)
        x = x * (torch.arange(N, device=dev)[None] < n[:, None])
        heard = m.tower(*spectrum(x, n))
        lines = [s.lines[s.rows[i][0]] for i in rows]
        ask = I.enc(ASK[0])
        prompts = []
        for c, l in zip(clips, lines):
            body = [plan.start] + [plan.pad] * tokens_of(c[3]) + [plan.stop] + (ask if l["kind"] == "t" else [])
            prompts.append([I.im_start, I.user, I.nl, *body, I.im_end, I.nl, I.im_start, I.assistant, I.nl])
        said = [I.tok.decode(t) for t in generate(m, prompts, heard, clips, plan.pad, I.im_end)]
        new = [l["label"] for l in lines if l["kind"] == "q" and l["label"] not in typed]
        if new:
            answers = generate(m, [I.prompt(q) for q in new], heard, [None] * len(new), plan.pad, I.im_end)
            typed.update({q: I.tok.decode(t) for q, t in zip(new, answers)})
        for i, l, t in zip(rows, lines, said):
            v = voice[s.rows[i][0]]
            for key in (v, "all"):
                r = res.setdefault(key, [0, 0, 0, 0])
                if l["kind"] == "q":
                    r[0] += t.strip() == typed[l["label"]].strip()
                    r[1] += 1
                else:
                    w, k = errors(l["label"], t)
                    r[2] += w
                    r[3] += k
            if noise is None and i % 23 == 0:
                print("   ", v, "|", l["label"], "|", t, flush=True)
    none = damage.nothing(200, SR * 3)
    n = torch.full((200,), SR * 3, device=dev)
    heard = m.tower(*spectrum(none, n))
    body = [I.im_start, I.user, I.nl, plan.start, *[plan.pad] * tokens_of(300), plan.stop, I.im_end, I.nl, I.im_start, I.assistant, I.nl]
    said = generate(m, [body] * 200, heard, [(0, 0, 0, 300, [])] * 200, plan.pad, I.im_end, 20)
    quiet = sum(I.tok.decode(t).strip() == SORRY for t in said)
    show = {k: f"{r[0]}/{r[1]} answered, {100 * r[2] / max(r[3], 1):.1f} % of {r[3]} words wrong" for k, r in sorted(res.items())}
    return {**show, "no speech": f"{quiet}/200 not answered"}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("text")
    ap.add_argument("said")
    ap.add_argument("checkpoint")
    ap.add_argument("out")
    ap.add_argument("--minutes", type=float, default=20)
    ap.add_argument("--done-by", type=float, default=0, help="seconds since 1970 at which to be done, whatever --minutes says")
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--clips", type=int, default=160, help="sounds a batch and process")
    ap.add_argument("--most", type=int, default=800, help="tokens of a conversation")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--thinker_lr", type=float, default=0.25, help="of the thinker, as a share of --lr")
    ap.add_argument("--alone", type=float, default=0.12, help="share of the time in which the tower learns alone")
    ap.add_argument("--hours", type=float, default=1, help="hours of sound a process waits for")
    ap.add_argument("--room", type=float, default=300, help="hours of sound a process keeps")
    ap.add_argument("--judge", default="")
    ap.add_argument("--every", type=float, default=240, help="seconds between judgements")
    ap.add_argument("--init", default="")
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    W = World(a.device)
    dev, cuda = W.dev, a.device == "cuda"
    torch.manual_seed(a.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = False
    m = Ears().to(dev)
    m.thinker.load_state_dict(from_hf(a.checkpoint)["thinker"])
    if a.init:
        before = torch.load(a.init, map_location=dev)
        m.tower.load_state_dict(before["tower"])
        m.thinker.load_state_dict(before["thinker"])
        if "ctc" in before:
            m.ctc.load_state_dict(before["ctc"])
    W.same(m)
    m.thinker.embed_tokens.requires_grad_(False)
    import copy

    ema = copy.deepcopy(m).eval()
    spectrum, damage = Spectrum().to(dev), Damage(a.seed * 7 + W.rank, dev)
    sounds = Sounds(a.said, W, dev, a.room)
    log = lambda *x: print(f"[ears {W.rank}]", *x, flush=True) if W.rank == 0 else None
    every = [p for p in m.parameters() if p.requires_grad]
    th = {id(p) for p in m.thinker.parameters()}
    matrix = lambda n, p: p.dim() >= 2 and "conv2d" not in n and "ctc" not in n and "lm_head" not in n and min(p.shape[-2:]) >= 16
    named = [(n, p) for n, p in m.named_parameters() if p.requires_grad]
    muons = [Muon([p for n, p in named if matrix(n, p) and (id(p) in th) == t]) for t in (False, True)]
    rest = [[p for n, p in named if not matrix(n, p) and (id(p) in th) == t] for t in (False, True)]
    adamw = torch.optim.AdamW([{"params": x} for x in rest], betas=(0.9, 0.97), weight_decay=0.01, fused=cuda)
    log(f"tower {sum(p.numel() for p in m.tower.parameters()) / 1e6:.2f} M, thinker {sum(p.numel() for p in m.thinker.parameters()) / 1e6:.2f} M")
    sounds.wait(a.hours)
    W.agree(0)
    log(f"{sounds.end / SR / 3600:.1f} h at the start; {W.size} processes")
    ready = queue.Queue(8)

    def draw(k):
        plan = Plan(sounds, a.text, a.seed * 131 + W.rank * 17 + k)
        while True:
            ready.put(plan.batch(a.clips, a.most))

    plan = Plan(sounds, a.text, 7)
    for k in range(1 if not cuda else 2):
        threading.Thread(target=draw, args=(k,), daemon=True).start()
    begun, step, heard = time.time(), 0, 0
    end = a.done_by or begun + a.minutes * 60
    polled = shown = begun
    judged, share = begun, 0.0
    while True:
        if step % 5 == 0:
            share = W.agree((time.time() - begun) / (end - begun))
        if share >= 1:
            break
        speed, conversations = ready.get()
        think = share > a.alone
        lr = a.lr * min(1, (step + 1) / 300) * (0.5 * (1 + math.cos(math.pi * share)) * 0.98 + 0.02)
        lr_th = a.thinker_lr * lr * min(1, max(0.0, share - a.alone) / 0.03)
        adamw.param_groups[0]["lr"], adamw.param_groups[1]["lr"] = lr, lr_th
        with torch.autocast("cuda" if cuda else "cpu", torch.bfloat16, enabled=cuda):
            out = losses(m, plan, spectrum, damage, sounds, speed, conversations, think)
        fade = 1.0 if not think else max(0.1, 1 - (share - a.alone) / 0.5) * 0.5
        loss = out["ctc"] * fade + (out["answer"] + 0.01 * out["aux"] if think else 0)
        for p in every:
            p.grad = None
        loss.backward()
        for p in every:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        W.average(every)
        norm = torch.nn.utils.clip_grad_norm_(every, 1.0)
        muons[0].step(lr)
        if think:
            muons[1].step(lr_th)
        adamw.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(m.parameters()), 1 - min(0.998, (1 + step) / (10 + step)))
        step += 1
        heard += sum(c[3] for x in conversations for c in x[2]) / 100 / 3600 * W.size
        now = time.time()
        if now - polled > 5:
            polled = now
            sounds.poll()
        if step in (1, 3, 10, 30, 100) or now - shown > 10:
            shown = now
            text = " ".join(f"{k} {float(torch.as_tensor(v).detach()):.3f}" for k, v in out.items())
            log(f"step {step} {now - begun:.0f}s {step / (now - begun):.1f}/s {text} norm {float(norm):.2f} lr {lr:.1e} heard {heard:.0f} h of {sounds.end / SR / 3600 * W.size:.0f}")
        if W.rank == 0 and a.judge and now - judged > a.every and share > a.alone:
            judged = now
            log(json.dumps(judge(ema, plan, spectrum, damage, a.judge, dev), indent=1))
            save(ema, a.out)
    if W.rank == 0:
        save(ema, a.out)
        log(f"done {step} steps, {heard:.0f} h heard")
        if a.judge:
            for noise in (None, 20, 10):
                log(f"noise {noise}", json.dumps(judge(ema, plan, spectrum, damage, a.judge, dev, noise), indent=1))
        log(check(ema.thinker, a.text, 100 if cuda else 4))
        open(f"{a.out}/DONE", "w").write("ok")
    if W.size > 1:
        W.dist.barrier()
        W.dist.destroy_process_group()


def save(m, out):
    state = {k: {n: p.detach().cpu() for n, p in getattr(m, k).state_dict().items()} for k in ("tower", "thinker", "ctc")}
    torch.save(state, f"{out}/ears.tmp")
    os.replace(f"{out}/ears.tmp", f"{out}/ears.pt")


if __name__ == "__main__":
    main()
