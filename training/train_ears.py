"""The ears: an audio tower as Qwen3-Omni has it, and a thinker that reads what the tower hears.

    python train_ears.py TEXT_DIR SAID_DIR CHECKPOINT OUT_DIR --minutes 20 [--device cuda] [--judge JUDGED_DIR] [--init ears.pt]
    torchrun --nproc_per_node N train_ears.py ...

Begins with the thinker of CHECKPOINT, whose embeddings stay what they are (the talker reads them), and with its tower, if
that was trained here (then with --alone 0.02). SAID_DIR is what said.py leaves, also while it is being made; each process
takes its share of the parts and keeps it on its GPU, where every utterance is changed at random: another speed, throat,
rhythm and larynx, a room, colored noise, other voices, tones, a band, an equalizer, a level, clipping.

The thinker is asked to answer a question, to repeat what follows "say", to write down what it heard, and, where there is
nothing but noise, tones or silence, to say that it did not understand; with earlier turns, of sound or text, and among its
typed tasks of before (train_thinker.py). Losses: cross entropy of answers; by two layers that are not kept, CTC of the words
on the tower's rows and cross entropy of the teacher's phonemes on what half of the tower leaves, which come first and fade;
a hundredth of the experts' load balance.

Writes OUT_DIR/ears.pt: tower, thinker and these two layers, averages over time. --judge: what is understood of voices that
were never heard.
"""

import argparse, copy, glob, json, math, os, random, time
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset
from muon import Muon
from safetensors.torch import load_file
from nets import TH, Thinker, VOCAB, World, from_hf
from train_thinker import SYS, Tasks, check, lay

SR, HOP, N_FFT, BINS = 16000, 160, 400, 128
LAB, PHONEMES = 200, 192  # samples of a phoneme's label, numbers that the teacher has for phonemes
CHUNK, TOKENS, WINDOW = 100, 13, 8  # frames of a chunk, its tokens, chunks that attend to each other (8 s)
EARS = dict(d=256, layers=8, heads=4, ffn=1024, channels=96)
SORRY = "Sorry, I did not understand that."
ASK = ["Transcribe the audio into text."] * 6 + [
    "Transcribe the audio.", "Transcribe this.", "What did I say?", "Write down what I said.", "Transcribe the recording.",
    "Please transcribe.", 'Transcribe the audio into text. Its language is "en".',
]  # fmt: skip


def tokens_of(frames):
    """Rows of the tower for so many frames of the spectrum, a number or a tensor."""
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

    def forward(self, mel, frames, middle=False):
        """mel [B, bins, chunks * 100], zero behind a clip's frames; frames [B] -> rows [B, chunks * 13, hidden]; of clip b the
        first tokens_of(frames[b]) count. middle: what half of the layers leave, too"""
        B, _, L = mel.shape
        n = L // CHUNK
        x = mel.view(B, BINS, n, CHUNK).transpose(1, 2).reshape(B * n, 1, BINS, CHUNK)
        for conv in (self.conv2d1, self.conv2d2, self.conv2d3):
            x = F.gelu(conv(x))
        x = self.conv_out(x.permute(0, 3, 1, 2).flatten(2)) + self.at  # [B * n, 13, d]
        w = -(-n // WINDOW)
        x = F.pad(x.view(B, n, TOKENS, -1), (0, 0, 0, 0, 0, (w * WINDOW - n) if w > 1 else 0))
        x = x.reshape(B * w, -1, x.shape[-1])
        count = tokens_of(frames)
        seen = torch.arange(x.shape[0] // B * x.shape[1], device=x.device)[None] < count[:, None]
        mask = seen.view(B * w, 1, 1, -1)
        mask = mask | ~mask.any(-1, keepdim=True)  # a window with nothing in it attends to itself
        for k, layer in enumerate(self.layers):
            x = layer(x, self.heads, mask)
            if 2 * k + 2 == len(self.layers):
                half = x
        x = self.proj2(F.gelu(self.proj1(self.ln_post(x))))
        x = x.view(B, -1, x.shape[-1])[:, : n * TOKENS]
        return (x, half.reshape(B, -1, half.shape[-1])[:, : n * TOKENS]) if middle else x


class TowerLayer(nn.Module):
    def __init__(self, d, ffn):
        super().__init__()
        self.drop = nn.Dropout(0.05)
        self.self_attn = nn.ModuleDict({k: nn.Linear(d, d) for k in ("q_proj", "k_proj", "v_proj", "out_proj")})
        self.self_attn_layer_norm, self.final_layer_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.fc1, self.fc2 = nn.Linear(d, ffn), nn.Linear(ffn, d)

    def forward(self, x, heads, mask):
        y, a = self.self_attn_layer_norm(x), self.self_attn
        q, k, v = (a[p](y).unflatten(-1, (heads, -1)).transpose(1, 2) for p in ("q_proj", "k_proj", "v_proj"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        x = x + self.drop(a["out_proj"](y))
        return x + self.drop(self.fc2(F.gelu(self.fc1(self.final_layer_norm(x)))))


class Spectrum(nn.Module):
    """Whisper's log-mel features, as the checkpoint's preprocessor has them."""

    def __init__(self):
        super().__init__()
        from transformers.audio_utils import mel_filter_bank

        bank = mel_filter_bank(1 + N_FFT // 2, BINS, 0.0, 8000.0, SR, norm="slaney", mel_scale="slaney")
        self.register_buffer("bank", torch.tensor(bank, dtype=torch.float32).T.contiguous(), persistent=False)
        self.register_buffer("window", torch.hann_window(N_FFT), persistent=False)

    def forward(self, x, n, mouth=None):
        """x [B, N] samples, zero behind the n [B] that count -> mel [B, bins, whole chunks], frames [B]. mouth: whose the
        voice becomes"""
        s = torch.stft(x, N_FFT, HOP, window=self.window, return_complex=True)[..., :-1].abs() ** 2
        if mouth is not None:
            s = mouth(s)
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

    def forward(self, x, n, hard=1.0):
        """x [B, N] with n [B] samples each. -> the same, damaged; hard: how much, 0 to 1"""
        B, N = x.shape
        power = (x.pow(2).sum(1, keepdim=True) / n[:, None]).sqrt() + 1e-6
        nf = 1 << (N + SR // 2 - 1).bit_length()
        spectrum = torch.fft.rfft(x, nf)
        # a room: a first sound, then noise that dies away
        k = SR // 2
        t = torch.arange(k, device=self.dev) / SR
        tail = self.n(B, k) * torch.exp(-6.9 * t[None] / self.u(B, 1, lo=0.08, hi=0.7)) * (t > 0.002)
        tail = tail / (tail.pow(2).sum(1, keepdim=True).sqrt() + 1e-9) * 10 ** (self.u(B, 1, lo=-26, hi=0) / 20)
        room = F.pad(tail * (self.u(B, 1) < 0.65 * hard), (0, nf - k))
        room[:, 0] += 1
        # a band and an equalizer
        f = torch.arange(nf // 2 + 1, device=self.dev) * (SR / nf)
        low = torch.where(self.u(B, 1) < 0.3, self.u(B, 1, lo=2800, hi=7000), 2e4)
        high = torch.where(self.u(B, 1) < 0.4, self.u(B, 1, lo=50, hi=350), 1.0)
        band = (1 + (f[None] / low) ** 12) ** -0.5 * (1 + (high / (f[None] + 1)) ** 6) ** -0.5
        curve = F.interpolate(
            self.n(B, 1, 9) * self.u(B, 1, 1, lo=0, hi=5), nf // 2 + 1, mode="linear", align_corners=True
        )[:, 0]
        x = torch.fft.irfft(spectrum * torch.fft.rfft(room) * band * 10 ** (curve / 20), nf)[:, :N]
        now = (x.pow(2).sum(1, keepdim=True) / n[:, None]).sqrt() + 1e-6
        x = x * (power / now)
        # what else is heard
        quiet = self.u(B, 1, lo=30 - 30 * hard, hi=48)
        x = x + self.noise(B, N) * power * 10 ** (-quiet / 20)
        other = x.roll(1, 0) + x.roll(2, 0) + (x.roll(3, 0) if B > 3 else 0)
        other = other / (other.pow(2).mean(1, keepdim=True).sqrt() + 1e-6) * power
        x = x + other * (self.u(B, 1) < 0.12 * hard) * 10 ** (-self.u(B, 1, lo=8, hi=25) / 20)
        some = torch.randperm(B, generator=self.g, device=self.dev)[: round(B * 0.08 * hard)]
        if len(some):
            x[some] += self.tones(len(some), N) * power[some] * 10 ** (-self.u(len(some), 1, lo=5, hi=25) / 20)
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


def between(s, at, axis):
    """s [B, K, T] at the places [B, K'] of its axis 1 or 2, which lie between whole ones."""
    last, shape = s.shape[axis] - 1, list(s.shape)
    shape[axis] = at.shape[1]
    at = at.clamp(0, last)
    low, part = at.long(), (at % 1).unsqueeze(3 - axis)
    take = lambda k: s.gather(axis, k.unsqueeze(3 - axis).expand(shape))
    return take(low) * (1 - part) + take((low + 1).clamp(max=last)) * part


class Mouth:
    """Other speakers, at random: a throat of another length and shape, another rhythm, and for some another larynx, which
    hums at a pitch of its own, breathes or whispers."""

    def __init__(self, damage, clips, hard):
        u = damage.u
        self.d, self.hard = damage, hard
        self.length = 1 + u(clips, 1, lo=-0.2, hi=0.2) * hard
        self.bend = u(clips, 2, lo=-90, hi=90) * hard  # Hz
        self.period, self.phase = u(clips, 1, lo=40, hi=150), u(clips, 1, hi=2 * math.pi)  # frames
        self.swing = u(clips, 1, hi=0.3) * hard * (u(clips, 1) < 0.6) * self.period / (2 * math.pi)
        self.other = (u(clips) < 0.35 * hard).nonzero()[:, 0]

    def moment(self, t):
        """Which frame was said by the old mouth when frame t [.., k] is by the new one. -> [B, k]"""
        return t + self.swing * torch.sin(2 * math.pi * t / self.period + self.phase)

    def __call__(self, s):
        """Power spectra [B, bins, frames] -> the same, by these mouths"""
        dev, bins, step = s.device, s.shape[1], SR / N_FFT
        f = torch.arange(bins, device=dev)[None] * step
        part = math.pi * f / (SR / 2)
        at = f / self.length + self.bend[:, :1] * part.sin() + self.bend[:, 1:] * (2 * part).sin()
        s = between(s, at / step, 1)
        s = between(s, self.moment(torch.arange(s.shape[2], device=dev)[None].float()), 2)
        if len(self.other):
            s = s.index_copy(0, self.other, self.larynx(s[self.other]))
        return s

    def larynx(self, s):
        u, (b, bins, frames), dev = self.d.u, s.shape, s.device
        k = torch.arange(-9, 10, device=dev) / 3.5  # 140 Hz: what a throat leaves when the harmonics are gone
        k = torch.exp(-0.5 * k * k)
        throat = F.conv2d(F.pad(s[:, None], (0, 0, 9, 9), mode="replicate"), (k / k.sum()).view(1, 1, -1, 1))[:, 0]
        drift = F.interpolate(self.d.n(b, 1, frames // 25 + 2), frames, mode="linear")
        pitch = 80 * 2 ** u(b, 1, 1, hi=2.0) * torch.exp(0.12 * drift)
        f = torch.arange(bins, device=dev).view(1, -1, 1) * (SR / N_FFT)
        hum = (0.5 + 0.5 * torch.cos(2 * math.pi * f / pitch)) ** 2 / 0.375
        edge = torch.where(u(b, 1, 1) < 0.2, -4000.0, u(b, 1, 1, lo=1000, hi=6000))  # hum below, breath above
        voiced = torch.sigmoid((edge - f) / 400)
        return throat * (voiced * hum - (1 - voiced) * torch.log(u(b, bins, frames) + 1e-6))


class Sounds:
    """Utterances of this process, on its device. Which there are is shared with the workers that plan batches."""

    def __init__(self, folder, world, device, hours):
        self.folder, self.W, self.dev = folder, world, device
        self.pcm = torch.zeros(int(hours * 3600 * SR), dtype=torch.int16, device=device)
        self.lab = torch.zeros(int(hours * 3600 * SR) // LAB, dtype=torch.int16, device=device)
        self.rows = torch.zeros(
            int(hours * 2400), 4, dtype=torch.int64
        ).share_memory_()  # line, first sample, samples, teacher
        self.count = torch.zeros(1, dtype=torch.int64).share_memory_()
        self.end, self.known = 0, set()
        while not os.path.exists(f"{folder}/lines.jsonl"):
            time.sleep(0.5)
        self.lines = [json.loads(l) for l in open(f"{folder}/lines.jsonl")]

    def poll(self, most=40):
        """Takes in some parts that are new. -> hours here"""
        for path in sorted(set(glob.glob(f"{self.folder}/part_*.json")) - self.known)[: most * self.W.size]:
            if int(path[-10:-5]) % self.W.size != self.W.rank:
                self.known.add(path)
                continue
            pcm, lab = (torch.from_numpy(np.load(path[:-5] + x)) for x in (".npy", ".lab.npy"))
            new = [
                [line, self.end + at, n, voice == "teacher"]
                for line, voice, at, n in json.load(open(path))
                if n >= SR // 3
            ]
            n = int(self.count)
            if self.end + len(pcm) > len(self.pcm) or n + len(new) > len(self.rows):
                break
            self.known.add(path)
            self.pcm[self.end : self.end + len(pcm)] = pcm.to(self.dev)
            self.lab[self.end // LAB : (self.end + len(pcm)) // LAB] = lab.to(self.dev)
            self.end += len(pcm)
            if new:
                self.rows[n : n + len(new)] = torch.tensor(new)
                self.count += len(new)
        return self.end / SR / 3600

    def wait(self, hours):
        while self.poll() < hours and not os.path.exists(f"{self.folder}/DONE"):
            time.sleep(0.5)

    def take(self, clips, N):
        """Samples of clips [B, 5] (first sample, samples, lead, tail, frames). -> [B, N]"""
        k = torch.arange(N, device=self.dev)[None] - clips[:, 2:3]
        x = self.pcm[(clips[:, :1] + k.clamp(min=0)).clamp(max=len(self.pcm) - 1)].float() / 32768
        return x * ((k >= 0) & (k < clips[:, 1:2]))

    def phonemes(self, clips, speed, rows, mouth):
        """What sounds at the beginning, middle and end of the 80 ms of each row. -> [B, rows, 3]"""
        t = torch.arange(rows, device=self.dev)
        t = (t // TOKENS * CHUNK + t % TOKENS * 8)[:, None] + torch.tensor([1.3, 4.0, 6.7], device=self.dev)
        t = mouth.moment(t.view(1, -1)).view(len(clips), rows, 3)
        k = (t * HOP * speed - clips[:, 2].view(-1, 1, 1)).long()
        lab = self.lab[((clips[:, 0].view(-1, 1, 1) + k.clamp(min=0)) // LAB).clamp(max=len(self.lab) - 1)].long()
        return lab * ((k >= 0) & (k < clips[:, 1].view(-1, 1, 1)))


class Plan:
    """Draws conversations: token ids with a place for each sound, which tokens are answers, and the sounds."""

    def __init__(self, lines, folder, seed):
        self.lines, self.r, self.typed = lines, random.Random(seed), Tasks(folder, seed)
        self.ids = self.typed.ids
        t = self.ids.tok.token_to_id
        self.start, self.pad, self.stop = t("<|audio_start|>"), t("<|audio_pad|>"), t("<|audio_end|>")
        self.cache, self.rows, self.by = {}, [], {k: [] for k in "qst"}

    def learn(self, sounds):
        """Which utterances there are by now."""
        for row in sounds.rows[len(self.rows) : int(sounds.count)].tolist():
            self.by[self.lines[row[0]]["kind"]].append(len(self.rows))
            self.rows.append(row)

    def enc(self, text):
        if text not in self.cache:
            self.cache[text] = self.ids.enc(text)
        return self.cache[text]

    def turn(self, sounds, speed):
        """-> ids of the user's turn, the answer's text; adds to `sounds` (first sample or -1, samples, lead, tail, frames,
        words, teacher)"""
        r, p = self.r, self.r.random()
        lead, tail = (int(r.uniform(0.02, 0.6 if r.random() < 0.7 else 3) * SR) for _ in range(2))
        if p < 0.05:
            frames = r.randint(30, 500)
            sounds.append((-1, 0, 0, 0, frames, [], 0))
            body = [self.start] + [self.pad] * tokens_of(frames) + [self.stop]
            if r.random() < 0.25:
                return body + self.enc(r.choice(ASK)), ""
            return body, SORRY
        kind = "q" if p < 0.50 else "s" if p < 0.68 else "t"
        line, first, n, teacher = self.rows[r.choice(self.by[kind])]
        line, frames = self.lines[line], int((n + lead + tail) / speed) // HOP
        sounds.append((first, n, lead, tail, frames, self.enc(line["label"]), teacher))
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
                ids += [I.im_start, I.system, I.nl, *self.enc(system), I.im_end, I.nl]
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
            if len(ids) <= most and sounds and all(x[4] <= 1000 for x in sounds):
                return ids, answer, sounds

    def batch(self, clips, most, parts):
        """Conversations with so many sounds, and typed ones, as arrays: speed; clips [C, 5]; words [C, W] and their number;
        whether the teacher speaks; the clips by length, in parts; groups of ids and targets with their number of clips"""
        r = self.r
        speed = r.choice([0.85, 0.9, 0.95, 1.0, 1.0, 1.0, 1.05, 1.1, 1.2])
        out, n = [], 0
        while n < clips:
            out.append(self.conversation(speed, most))
            n += len(out[-1][2])
        for _ in range(len(out) // 3):
            ids, mask = self.typed.sample()
            if len(ids) <= most:
                out.append((ids, mask, []))
        out.sort(key=lambda c: len(c[0]))
        sounds = [s for c in out for s in c[2]]
        words = np.zeros((len(sounds), max(len(s[5]) for s in sounds)), np.int64)
        for i, s in enumerate(sounds):
            words[i, : len(s[5])] = s[5]
        array = lambda x: torch.tensor(x, dtype=torch.int64)
        order = sorted(range(len(sounds)), key=lambda i: sounds[i][4])
        size, cut = -(-len(order) // parts), len(out) * 3 // 4
        groups = [(*lay(g), sum(len(c[2]) for c in g)) for g in (out[:cut], out[cut:]) if g]
        return (
            speed, array([s[:5] for s in sounds]), torch.from_numpy(words), array([len(s[5]) for s in sounds]),
            torch.tensor([bool(s[6]) for s in sounds]), [array(order[i : i + size]) for i in range(0, len(order), size)], groups,
        )  # fmt: skip


class Batches(IterableDataset):
    def __init__(self, sounds, text, clips, most, parts, seed):
        self.args, self.text, self.seed = (clips, most, parts), text, seed
        self.lines, self.shared = sounds.lines, (sounds.rows, sounds.count)

    def __iter__(self):
        class Shared:
            rows, count = self.shared

        worker = torch.utils.data.get_worker_info()
        plan, n = Plan(self.lines, self.text, self.seed + (worker.id if worker else 0) * 7919), 0
        while True:
            if n % 10 == 0:
                plan.learn(Shared)
            n += 1
            yield plan.batch(*self.args)


def hear(tower, spectrum, damage, sounds, speed, clips, N, hard):
    """Clips [B, 5] of at most N samples as rows of the tower, by other mouths and damaged. -> rows [B, tokens, hidden], those
    of the middle, which phonemes sound (Sounds.phonemes)"""
    dev = sounds.dev
    none, n = (clips[:, 0] < 0).nonzero()[:, 0], clips[:, 4] * HOP
    with torch.autocast(dev.split(":")[0], enabled=False), torch.no_grad():
        before = int(round(N * speed / 200)) * 200
        x = sounds.take(clips, before)
        if before != N:  # another speed, by FFT
            x = torch.fft.irfft(torch.fft.rfft(x)[:, : min(before, N) // 2 + 1], N) * (N / before)
        x = damage(x, n, hard)
        if len(none):
            x[none] = damage.nothing(len(none), N)
        x = x * (torch.arange(N, device=dev)[None] < n[:, None])
        mouth = Mouth(damage, len(clips), hard)
        mel, frames = spectrum(x, n, mouth)
        for size, axis in ((18, 1), (18, 1), (22, 2)):  # bands and moments that are missing
            whole = mel.shape[axis]
            at, width = (
                damage.u(len(clips), 1) * whole,
                damage.u(len(clips), 1) * size * hard * (damage.u(len(clips), 1) < 0.5),
            )
            k = torch.arange(whole, device=dev)[None]
            hole = (k >= at) & (k < at + width)
            mel = mel.masked_fill(hole[:, :, None] if axis == 1 else hole[:, None], 0)
    rows, middle = tower(mel, frames, middle=True)
    return rows, middle, sounds.phonemes(clips, speed, rows.shape[1], mouth)


def embed(thinker, x, pad, rows):
    """Embeddings of ids [B, L] with rows [n, hidden], in order, where pads stand."""
    e = thinker.embed_tokens(x)
    if rows is None:
        return e
    return e.masked_scatter((x == pad)[..., None].expand_as(e), rows.to(e.dtype))


class TowerAndThinker(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower, self.thinker = Tower(), Thinker()
        self.ctc = nn.Linear(TH["hidden"], VOCAB + 1)
        self.guide = nn.Linear(EARS["d"], 3 * PHONEMES)


def losses(m, pad, spectrum, damage, sounds, batch, think, hard, still=False):
    """batch: as Plan.batch leaves it, on the device. still: only the thinker's"""
    speed, clips, words, many, teacher, parts, groups = batch
    found, middles, longest = [], [], []
    for part in parts:
        some = clips[part]
        N = -(-int(some[-1, 4]) * HOP // SR) * SR
        with torch.set_grad_enabled(not still):
            rows, middle, labels = hear(m.tower, spectrum, damage, sounds, speed, some, N, hard)
        found.append(rows)
        longest.append(rows.shape[1])
        counts = torch.arange(rows.shape[1], device=clips.device)[None] < tokens_of(some[:, 4])[:, None]
        by_teacher = counts & teacher[part][:, None]
        middles.append((middle[by_teacher], labels[by_teacher]))
    most = max(longest)
    back = torch.cat(parts).argsort()
    rows = torch.cat([F.pad(x, (0, 0, 0, most - x.shape[1])) for x in found])[back]
    tokens = tokens_of(clips[:, 4])
    out = {}
    if not still:
        middle, labels = (torch.cat(x) for x in zip(*middles))
        guess = m.guide(middle).view(-1, PHONEMES).float()
        out["sounds"] = F.cross_entropy(guess, labels.flatten(), reduction="sum") / max(labels.numel(), 1)
        ok = (many > 0) & (many < tokens)
        logp = m.ctc(rows[ok]).float().log_softmax(-1).transpose(0, 1)
        out["ctc"] = F.ctc_loss(logp, words[ok], tokens[ok], many[ok], blank=VOCAB, zero_infinity=True)
    if think:
        flat = rows[torch.arange(most, device=rows.device)[None] < tokens[:, None]]
        ends = torch.cat([tokens.new_zeros(1), tokens.cumsum(0)]).tolist()
        total, right, count, aux, at = 0.0, 0, 0, 0.0, 0
        for x, y, n in groups:
            e = embed(m.thinker, x, pad, flat[ends[at] : ends[at + n]] if n else None)
            at += n
            h = m.thinker.stack(e)
            keep = y >= 0
            lg = m.thinker.lm_head(h[keep]).float()
            total = total + F.cross_entropy(lg, y[keep], reduction="sum")
            right += (lg.argmax(-1) == y[keep]).sum()
            count += lg.shape[0]
            aux = aux + m.thinker.stack.aux() / TH["layers"] / len(groups)
        out["answer"], out["right"], out["aux"] = total / count, right / count, aux
    return out


@torch.no_grad()
def generate(m, ids, rows, clips, pad, eos, most=60):
    """Greedy answers to prompts, each with one sound of clips[i] rows, or 0. -> token lists"""
    dev = rows.device
    L = max(len(x) for x in ids)
    ends, e = [len(x) for x in ids], torch.zeros(len(ids), L + most, TH["hidden"], device=dev)
    for i, x in enumerate(ids):
        t = torch.tensor([x], device=dev)
        e[i, : len(x)] = embed(m.thinker, t, pad, rows[i, : clips[i]] if clips[i] else None)[0]
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
def judge(m, plan, spectrum, damage, folder, dev, noise=None, behind=0.2):
    """Questions answered as typed ones are, words written down wrongly, by voice (all: of voices never heard); sounds without
    speech left unanswered. noise: dB below the speech; behind: seconds of silence behind it"""

    class One:
        rank, size = 0, 1

    s = Sounds(folder, One, dev, 3)
    s.poll(10**6)
    I, res, typed, voice = plan.ids, {}, {}, {}
    for path in sorted(glob.glob(f"{folder}/part_*.json")):
        for line, v, _, n in json.load(open(path)):
            voice[line] = v
    every = s.rows[: int(s.count)].tolist()
    for part in range(0, len(every), 64):
        some = every[part : part + 64]
        tail = int(behind * SR)
        clips = torch.tensor([[first, n, 4800, tail, (n + 4800 + tail) // HOP] for _, first, n, _ in some], device=dev)
        N = -(-int(clips[:, 4].max()) * HOP // SR) * SR
        x, n = s.take(clips, N), clips[:, 4] * HOP
        power = (x.pow(2).sum(1, keepdim=True) / n[:, None]).sqrt()
        if noise is not None:
            x = x + damage.noise(len(some), N) * power * 10 ** (-noise / 20)
        x = x * (torch.arange(N, device=dev)[None] < n[:, None])
        heard = m.tower(*spectrum(x, n))
        lines = [s.lines[row[0]] for row in some]
        ask = I.enc(ASK[0])
        clips = [tokens_of(f) for f in clips[:, 4].tolist()]
        prompts = []
        for c, l in zip(clips, lines):
            body = [plan.start] + [plan.pad] * c + [plan.stop] + (ask if l["kind"] == "t" else [])
            prompts.append([I.im_start, I.user, I.nl, *body, I.im_end, I.nl, I.im_start, I.assistant, I.nl])
        said = [I.tok.decode(t) for t in generate(m, prompts, heard, clips, plan.pad, I.im_end)]
        new = [l["label"] for l in lines if l["kind"] == "q" and l["label"] not in typed]
        if new:
            answers = generate(m, [I.prompt(q) for q in new], heard, [0] * len(new), plan.pad, I.im_end)
            typed.update({q: I.tok.decode(t) for q, t in zip(new, answers)})
        for i, (row, l, t) in enumerate(zip(some, lines, said), part):
            v = voice[row[0]]
            for key in (v,) if v == "teacher" else (v, "all"):
                r = res.setdefault(key, [0, 0, 0, 0])
                if l["kind"] == "q":
                    r[0] += t.strip() == typed[l["label"]].strip()
                    r[1] += 1
                else:
                    w, k = errors(l["label"], t)
                    r[2] += w
                    r[3] += k
            if noise is None and behind < 1 and i % 23 == 0:
                print("   ", v, "|", l["label"], "|", t, flush=True)
    none = damage.nothing(200, SR * 3)
    n = torch.full((200,), SR * 3, device=dev)
    heard = m.tower(*spectrum(none, n))
    body = [plan.start, *[plan.pad] * tokens_of(300), plan.stop]
    body = [I.im_start, I.user, I.nl, *body, I.im_end, I.nl, I.im_start, I.assistant, I.nl]
    said = generate(m, [body] * 200, heard, [tokens_of(300)] * 200, plan.pad, I.im_end, 20)
    quiet = sum(I.tok.decode(t).strip() == SORRY for t in said)
    show = {
        k: f"{r[0]}/{r[1]} answered, {100 * r[2] / max(r[3], 1):.1f} % of {r[3]} words wrong"
        for k, r in sorted(res.items())
    }
    return {**show, "no speech": f"{quiet}/200 not answered"}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("text")
    ap.add_argument("said")
    ap.add_argument("checkpoint")
    ap.add_argument("out")
    ap.add_argument("--minutes", type=float, default=20)
    ap.add_argument(
        "--done-by", type=float, default=0, help="seconds since 1970 at which to be done, whatever --minutes says"
    )
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--workers", type=int, default=3, help="processes that plan batches")
    ap.add_argument("--parts", type=int, default=3, help="parts of a batch, by length")
    ap.add_argument("--clips", type=int, default=256, help="sounds a batch and process")
    ap.add_argument("--most", type=int, default=800, help="tokens of a conversation")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--thinker_lr", type=float, default=0.25, help="of the thinker, as a share of --lr")
    ap.add_argument("--still", action="store_true", help="the tower learns nothing any more, only the thinker")
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
    m = TowerAndThinker().to(dev)
    m.thinker.load_state_dict(from_hf(a.checkpoint)["thinker"])
    before = "thinker.audio_tower."
    weights = load_file(f"{a.checkpoint}/model.safetensors").items()
    tower = {k.removeprefix(before): v.float() for k, v in weights if k.startswith(before)}
    settling = 0  # so many steps only ctc and guide learn, where there is a tower that they are new to
    if {k: v.shape for k, v in tower.items()} == {k: v.shape for k, v in m.tower.state_dict().items()}:
        m.tower.load_state_dict(tower)
        settling = 0 if a.init else 100
    with torch.no_grad():  # what is heard begins as what is read
        e = m.thinker.embed_tokens.weight
        m.ctc.weight[:VOCAB] = e / e.norm(dim=1, keepdim=True)
    if a.init:
        before = torch.load(a.init, map_location=dev)
        m.tower.load_state_dict(before["tower"])
        m.thinker.load_state_dict(before["thinker"])
        m.ctc.load_state_dict(before["ctc"])
        m.guide.load_state_dict(before["guide"])
    W.same(m)
    m.thinker.embed_tokens.requires_grad_(False)
    if a.still:
        [layers.requires_grad_(False) for layers in (m.tower, m.ctc, m.guide)]
        m.tower.eval()
        a.alone, settling = -1, 0  # the thinker learns from the first step on
    ema = copy.deepcopy(m).eval()
    spectrum, damage = Spectrum().to(dev), Damage(a.seed * 7 + W.rank, dev)
    sounds = Sounds(a.said, W, dev, a.room)
    log = lambda *x: print(f"[ears {W.rank}]", *x, flush=True) if W.rank == 0 else None
    every = [p for p in m.parameters() if p.requires_grad]
    th = {id(p) for p in m.thinker.parameters()}
    matrix = lambda n, p: (
        p.dim() >= 2
        and "conv2d" not in n
        and "ctc" not in n
        and "guide" not in n
        and "lm_head" not in n
        and min(p.shape[-2:]) >= 16
    )
    named = [(n, p) for n, p in m.named_parameters() if p.requires_grad]
    muons = [Muon([p for n, p in named if matrix(n, p) and (id(p) in th) == t]) for t in (False, True)]
    passing = lambda n: n.startswith(("ctc", "guide"))
    rest = [[p for n, p in named if not matrix(n, p) and not passing(n) and (id(p) in th) == t] for t in (False, True)]
    rest.append([p for n, p in named if passing(n)])
    adamw = torch.optim.AdamW([{"params": x} for x in rest], betas=(0.9, 0.97), weight_decay=0.01, fused=cuda)
    log(
        f"tower {sum(p.numel() for p in m.tower.parameters()) / 1e6:.2f} M, thinker {sum(p.numel() for p in m.thinker.parameters()) / 1e6:.2f} M"
    )
    sounds.wait(a.hours)
    W.agree(0)
    log(f"{sounds.end / SR / 3600:.1f} h at the start; {W.size} processes")
    plan = Plan(sounds.lines, a.text, 7)
    loader = DataLoader(
        Batches(sounds, a.text, a.clips, a.most, a.parts, a.seed * 131 + W.rank * 17), batch_size=None, num_workers=a.workers,
        prefetch_factor=4 if a.workers else None, pin_memory=cuda,
    )  # fmt: skip

    def move(b):
        to = lambda x: x.to(dev, non_blocking=True)
        speed, clips, words, many, teacher, parts, groups = b
        return (
            speed,
            to(clips),
            to(words),
            to(many),
            to(teacher),
            [to(p) for p in parts],
            [(to(x), to(y), n) for x, y, n in groups],
        )

    begun, step, heard = time.time(), 0, 0
    end = a.done_by or begun + a.minutes * 60
    polled = shown = begun
    judged, share = begun, 0.0
    for b in loader:
        if step % 5 == 0:
            share = W.agree((time.time() - begun) / (end - begun))
        if share >= 1:
            break
        think, hard = share > a.alone, 1.0 if a.still else min(1.0, share / (2 * a.alone))
        warm = min(1, (step + 1) / (30 if a.still else 300))
        lr = a.lr * warm * (0.5 * (1 + math.cos(math.pi * share)) * 0.98 + 0.02)
        lr_th = a.thinker_lr * lr * min(1, max(0.0, share - a.alone) / 0.03)
        settled = step >= settling
        lrs = (lr, lr_th, lr) if settled else (0.0, 0.0, a.lr * min(1, (step + 1) / 20))
        for group, rate in zip(adamw.param_groups, lrs):
            group["lr"] = rate
        with torch.autocast("cuda" if cuda else "cpu", torch.bfloat16, enabled=cuda):
            out = losses(m, plan.pad, spectrum, damage, sounds, move(b), think, hard, a.still)
        fade = 1.0 if not think else max(0.1, 1 - (share - a.alone) / 0.5) * 0.5
        loss = (out["answer"] + 0.01 * out["aux"]) if think else 0
        if not a.still:
            loss = loss + out["ctc"] * fade + 0.5 * fade * out["sounds"]
        for p in every:
            p.grad = None
        loss.backward()
        for p in every:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        W.average(every)
        norm = torch.nn.utils.clip_grad_norm_(every, 1.0)
        if settled:
            muons[0].step(lr)
            if think:
                muons[1].step(lr_th)
        adamw.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(m.parameters()), 1 - min(0.998, (1 + step) / (10 + step)))
        step += 1
        heard += float(b[1][:, 4].sum()) / 100 / 3600 * W.size
        now = time.time()
        if now - polled > 5:
            polled = now
            sounds.poll()
        if step in (1, 3, 10, 30, 100) or now - shown > 10:
            shown = now
            text = " ".join(f"{k} {float(torch.as_tensor(v).detach()):.3f}" for k, v in out.items())
            log(
                f"step {step} {now - begun:.0f}s {step / (now - begun):.1f}/s {text} norm {float(norm):.2f} lr {lr:.1e} heard {heard:.0f} h of {sounds.end / SR / 3600 * W.size:.0f}"
            )
        if W.rank == 0 and a.judge and now - judged > a.every and share > a.alone:
            judged = now
            log(json.dumps(judge(ema, plan, spectrum, damage, a.judge, dev), indent=1))
            save(ema, a.out)
    if W.rank == 0:
        save(ema, a.out)
        log(f"done {step} steps, {heard:.0f} h heard")
        if a.judge:
            for noise, behind in ((None, 0.2), (20, 0.2), (10, 0.2), (None, 2.0)):
                found = judge(ema, plan, spectrum, damage, a.judge, dev, noise, behind)
                log(f"noise {noise}, {behind} s of silence behind", json.dumps(found, indent=1))
        log(check(ema.thinker, a.text, 100 if cuda else 4))
        open(f"{a.out}/DONE", "w").write("ok")
    if W.size > 1:
        W.dist.barrier()
        W.dist.destroy_process_group()


def save(m, out):
    state = {
        k: {n: p.detach().cpu() for n, p in getattr(m, k).state_dict().items()}
        for k in ("tower", "thinker", "ctc", "guide")
    }
    torch.save(state, f"{out}/ears.tmp")
    os.replace(f"{out}/ears.tmp", f"{out}/ears.pt")


if __name__ == "__main__":
    main()
