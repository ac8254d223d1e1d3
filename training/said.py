"""What the ears learn from and are judged by: questions and sentences, spoken by the teacher and by programs.

    python said.py TEXT_DIR OUT_DIR [--workers 16] [--judge N] [--seconds S] [--hibari FOLDER] [--programs FOLDER]

The teacher (synth.py) speaks at any pitch, with any formants and at any pace: its fundamental frequency is scaled and its
spectra are stretched before they become sound. The programs are espeak-ng with its variants, flite, festival and RHVoice
(Debian's packages espeak-ng, flite, festival, festvox-kallpc16k, rhvoice, rhvoice-english; --programs: a folder with them,
their libraries and espeak-ng-data, if they are not installed).
--judge: instead N questions and the sentences of heldout.txt, by voices that the training never hears: pico, flite's slt,
festival's kdl and slt (Debian: libttspico-utils, festvox-kdlpc16k, festvox-us-slt-hts), and variants of espeak-ng; and for
comparison these sentences by the teacher.

Writes OUT_DIR/lines.jsonl (what can be said: kind, "say": what is spoken, "label": how it is written, "answer"), and parts:
part_K.npy (int16, 16 kHz, all utterances back to back), part_K.lab.npy (the teacher's: the phoneme that sounds, one number
for each 200 samples, 0 for none) and part_K.json ([[line, voice, first sample, samples], ...]; a first sample is a multiple
of 200). A part is complete once its json is there.
"""

import argparse, json, os, random, re, subprocess, tempfile, time, wave

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np

SR, RMS, LAB = 16000, 0.07, 200
PLAIN = re.compile(r"^[A-Za-z ,.'!?;:-]+$")
BEFORE = [
    "Say",
    "Say",
    "Say",
    "Say this",
    "Please say",
    "Repeat after me",
    "Repeat",
    "Please repeat after me",
    "Read this aloud",
]
ACCENTS = [
    "en-us",
    "en-us",
    "en-us",
    "en-gb",
    "en-gb-x-rp",
    "en-gb-scotland",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-029",
]
UNHEARD = ["Annie", "Diogo", "anika", "linda", "max", "steph2"]  # variants of espeak-ng for the judge
RHVOICES = ["alan", "bdl", "clb"]  # those whose licence allows it; slt's speaker is the judge's
SHARE = {"teacher": 0.46, "espeak": 0.22, "flite": 0.12, "rhvoice": 0.14, "festival": 0.06}


def bare(text):
    """What is heard of a text: its words."""
    return re.sub(r"[^a-z0-9+ ]", "", text.lower().replace("-", " ")).strip()


def lines(folder):
    """Everything that can be said: questions (q), requests to say something (s), sentences (t)."""
    r, seen, out = random.Random(5), {}, []
    for x in map(json.loads, open(f"{folder}/tasks.jsonl")):
        # "3 plus 4" and "three plus four" sound the same; the one in words is how it is written down
        key = (x["a"], re.sub(r"\d+", "#", bare(x["q"]).replace("+", "plus")))
        words = not re.search(r"[\d+]", x["q"])
        nice = words * 4 + x["q"][0].isupper() * 2 + (x["q"][-1] in "?.!")
        if words and (key not in seen or nice > seen[key][0]):
            seen[key] = (nice, {"kind": "q", "say": x["q"], "label": x["q"], "answer": x["a"], "w": x["w"]})
    out += [x for _, x in seen.values()]
    for text in open(f"{folder}/texts.txt").read().split("\n")[:-1]:
        if not PLAIN.match(text) or not 2 <= len(text) <= 110:
            continue
        if r.random() < 0.3:
            before = r.choice(BEFORE)
            out.append(
                {
                    "kind": "s",
                    "say": f"{before}{r.choice([':', ',', ''])} {text}",
                    "label": f"{before}: {text}",
                    "answer": text,
                }
            )
        else:
            out.append({"kind": "t", "say": text, "label": text, "answer": ""})
    return out


def resample(w, source, target=SR):
    """Band-limited, by FFT."""
    if source == target:
        return w
    n = len(w) + source // 10
    n += -n % (source // np.gcd(source, target))
    return (np.fft.irfft(np.fft.rfft(np.pad(w, (0, n - len(w)))), n * target // source) * (target / source)).astype(
        np.float32
    )


class Teacher:
    """The teacher with other pitches, formants and paces."""

    def __init__(self, hibari):
        import synth

        self.t = synth.Teacher(hibari)

    def say(self, text, r, rng):
        f0 = np.exp(r.gauss(-0.1, 0.3))
        high = 1 + 0.55 * (np.clip(f0, 0.5, 1.7) - 1) / 1.4 + r.gauss(0, 0.05)  # low voices have long throats
        formant, swing = float(np.clip(high, 0.76, 1.26)), float(np.clip(np.exp(r.gauss(0, 0.35)), 0.2, 1.8))
        pace = float(np.clip(np.exp(r.gauss(0.0, 0.14)), 0.72, 1.35))
        out, sounding = [], []
        for ids, (lh, th, ln, lr, phi, pitch, which) in self.t.nets(self.t.ids(text), pace):
            at = np.minimum(np.arange(lh.shape[0]) / formant, lh.shape[0] - 1)
            low, part = at.astype(int), (at - at.astype(int))[:, None].astype(np.float32)
            up, near = np.minimum(low + 1, lh.shape[0] - 1), np.rint(at).astype(int)
            lh, ln, lr = (x[low] * (1 - part) + x[up] * part for x in (lh, ln, lr))
            voiced = pitch > 40
            mean = np.exp(np.log(pitch[voiced]).mean()) if voiced.any() else 1.0
            pitch = np.where(voiced, np.clip(mean * f0 * (np.maximum(pitch, 1) / mean) ** swing, 55, 480), 0).astype(
                np.float32
            )
            out.append(self.t.dsp.synth(lh, th[near], ln, lr, phi[near], pitch, rng))
            sounding.append(
                np.repeat(np.asarray(ids, np.int16)[np.clip(which, 0, len(ids) - 1)], 400 // LAB)
            )  # 25 ms each
        if not out:
            return None, None
        return resample(np.concatenate(out), 24000), np.concatenate(sounding)


class Programs:
    """Programs in a folder as `bundle` leaves it, or those that are installed."""

    def __init__(self, folder):
        self.folder, self.tmp = folder, tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.env = {**os.environ, **({"LD_LIBRARY_PATH": f"{folder}/lib"} if folder else {})}
        data = (
            f"{folder}/espeak-ng-data"
            if folder
            else next(
                (
                    x
                    for x in ("/usr/lib/x86_64-linux-gnu/espeak-ng-data", "/usr/share/espeak-ng-data")
                    if os.path.isdir(x)
                ),
                "",
            )
        )
        self.data, self.variants = data, sorted(x for x in os.listdir(f"{data}/voices/!v") if x not in UNHEARD)

    def run(self, name, *args, text=""):
        path, none = f"{self.folder}/bin/{name}" if self.folder else name, subprocess.DEVNULL
        subprocess.run(
            [path, *args], env=self.env, check=True, input=text.encode(), stdout=none, stderr=none, timeout=60
        )

    def wav(self, path):
        with wave.open(path) as f:
            w = np.frombuffer(f.readframes(f.getnframes()), np.int16).astype(np.float32) / 32768
            rate = f.getframerate()
        os.unlink(path)
        return resample(w, rate)

    def espeak(self, text, r, variants=None):
        out = f"{self.tmp}/e.wav"
        voice = f"{r.choice(ACCENTS)}+{r.choice(variants or self.variants)}"
        path = ["--path=" + os.path.dirname(self.data)] if self.folder else []
        self.run(
            "espeak-ng",
            *path,
            "-v",
            voice,
            "-p",
            str(r.randint(20, 80)),
            "-s",
            str(r.randint(120, 215)),
            "-w",
            out,
            text,
        )
        return self.wav(out)

    def flite(self, text, r, voices=("kal16", "awb", "rms", "rms", "awb")):
        out, voice = f"{self.tmp}/f.wav", r.choice(voices)
        self.run(
            "flite", "-voice", voice, "--setf", f"duration_stretch={r.uniform(0.8, 1.3):.2f}", "-t", text, "-o", out
        )
        return self.wav(out)

    def rhvoice(self, text, r):
        out, voice = f"{self.tmp}/r.wav", r.choice(RHVOICES)
        pitch, rate = str(r.randint(75, 135)), str(r.randint(75, 135))
        self.run("RHVoice-test", "-p", voice, "-t", pitch, "-r", rate, "-o", out, text=text)  # reads /usr/share/RHVoice
        return self.wav(out)

    def pico(self, text, r):
        out = f"{self.tmp}/p.wav"
        self.run("pico2wave", "-l", r.choice(["en-US", "en-GB"]), "-w", out, text)  # reads /usr/share/pico
        return self.wav(out)

    def festival(self, texts, r, voices=("kal_diphone",)):
        """All at once, for it takes long to start. -> sound or None of each"""
        script = [f"(voice_{r.choice(voices)})"]
        for k, text in enumerate(texts):
            text = re.sub(r'["\\\\]', " ", text)
            stretch = f"(Parameter.set 'Duration_Stretch {r.uniform(0.8, 1.3):.2f})"
            script.append(
                f'{stretch}(utt.save.wave (utt.synth (Utterance Text "{text}")) "{self.tmp}/v{k}.wav" \'riff)'
            )
        open(f"{self.tmp}/s.scm", "w").write("\n".join(script) + "\n")
        self.run("festival", "-b", f"{self.tmp}/s.scm")  # reads /usr/share/festival
        paths = [f"{self.tmp}/v{k}.wav" for k in range(len(texts))]
        return [self.wav(p) if os.path.exists(p) else None for p in paths]


def level(w, sounding=None):
    """Without the silence around it, at one loudness, as int16, and the phonemes of what is left; None if nothing can be
    heard."""
    if w is None or len(w) < SR // 5:
        return None, None
    e = np.sqrt(np.convolve(w * w, np.ones(160, np.float32) / 160, "same"))
    loud = np.flatnonzero(e > 0.03 * e.max())
    if e.max() < 1e-4 or len(loud) < SR // 10:
        return None, None
    first, last = max(loud[0] - SR // 20, 0) // LAB, -(-(loud[-1] + SR // 20) // LAB)
    w = np.pad(w, (0, LAB))[first * LAB : last * LAB]
    w = w[: len(w) // LAB * LAB]
    w = w * min(RMS / np.sqrt(np.mean(w[np.abs(w) > 0.02 * np.abs(w).max()] ** 2)), 0.95 / np.abs(w).max())
    n = len(w) // LAB
    lab = np.zeros(n, np.int16)
    if sounding is not None:
        part = sounding[first : first + n]
        lab[: len(part)] = part
    return (np.clip(w, -1, 1) * 32767).astype(np.int16), lab


TOOLS = {}


def tool(name, args):
    if name not in TOOLS:
        TOOLS[name] = Teacher(args.hibari) if name == "teacher" else Programs(args.programs)
    return TOOLS[name]


def part(job):
    """One part, by one kind of voice. -> seconds of sound"""
    k, engine, items, a, stop = job
    path = f"{a.out}/part_{k:05d}"
    if time.time() > stop or os.path.exists(path + ".json"):
        return 0.0
    r, rng = random.Random(k * 977 + 5), np.random.default_rng(k)
    kind = engine.split(":")
    sounds = []
    if kind[0] == "festival":
        voices = (kind[1],) if len(kind) > 1 else ("kal_diphone",)
        try:
            sounds = [(w, None) for w in tool("programs", a).festival([x["say"] for _, x in items], r, voices)]
        except Exception as e:
            print("skip a part of festival", repr(e)[:100], flush=True)
            sounds = [(None, None)] * len(items)
    for _, x in items if not sounds else ():
        lab = None
        try:
            if kind[0] == "teacher":
                w, lab = tool("teacher", a).say(x["say"], r, rng)
            elif kind[0] == "espeak":
                w = tool("programs", a).espeak(x["say"], r, UNHEARD if len(kind) > 1 else None)
            elif kind[0] == "flite":
                w = tool("programs", a).flite(x["say"], r, *([(kind[1],)] if len(kind) > 1 else []))
            else:
                w = getattr(tool("programs", a), kind[0])(x["say"], r)
        except Exception as e:
            print("skip", engine, x["say"], repr(e)[:100], flush=True)
            w = None
        sounds.append((w, lab))
    waves, labs, meta, at = [], [], [], 0
    for (line, _), sound in zip(items, sounds):
        w, lab = level(*sound)
        if w is None or len(w) > 12 * SR:
            continue
        waves.append(w)
        labs.append(lab)
        meta.append([line, engine, at, len(w)])
        at += len(w)
    if not waves:
        return 0.0
    np.save(path + ".npy", np.concatenate(waves))
    np.save(path + ".lab.npy", np.concatenate(labs))
    json.dump(meta, open(path + ".tmp", "w"))
    os.rename(path + ".tmp", path + ".json")
    return at / SR


def jobs(all_lines, a, stop):
    """Parts of 40 lines, by one kind of voice each. Questions come again and again, sentences once in a round."""
    r, k = random.Random(11), 0
    asked = [i for i, x in enumerate(all_lines) if x["kind"] == "q"]
    rest = [i for i, x in enumerate(all_lines) if x["kind"] != "q"]
    weights = [min(all_lines[i]["w"], 6) ** 0.5 for i in asked]
    if a.judge:
        voices = ["pico", "flite:slt", "espeak:unheard", "festival:ked_diphone", "festival:cmu_us_slt_arctic_hts"]
        said = [all_lines[i] for i in r.sample(asked, min(a.judge, len(asked)))]
        said += [
            {"kind": "t", "say": t, "label": t, "answer": ""}
            for t in open(f"{a.text}/heldout.txt").read().split("\n")[:-1]
        ]
        all_lines += said
        new = list(range(len(all_lines) - len(said), len(all_lines)))
        shares = [(voice, new[v :: len(voices)]) for v, voice in enumerate(voices)]
        known = [dict(x) for x in said if x["kind"] == "t"][::2]
        shares += [("teacher", list(range(len(all_lines), len(all_lines) + len(known))))]
        all_lines += known
        for voice, some in shares:
            for i in range(0, len(some), a.part):
                yield k, voice, [(j, all_lines[j]) for j in some[i : i + a.part]], a, stop
                k += 1
        return
    at = 0
    while k < a.parts:
        if at % len(rest) < a.part:
            r.shuffle(rest)
        sentences = [rest[(at + i) % len(rest)] for i in range(a.part * 3 // 4)]
        at += len(sentences)
        items = sentences + r.choices(asked, weights, k=a.part - len(sentences))
        r.shuffle(items)
        yield k, r.choices(list(SHARE), list(SHARE.values()))[0], [(i, all_lines[i]) for i in items], a, stop
        k += 1


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("text")
    ap.add_argument("out")
    ap.add_argument("--workers", type=int, default=os.cpu_count())
    ap.add_argument("--judge", type=int, default=0)
    ap.add_argument("--parts", type=int, default=12000)
    ap.add_argument("--part", type=int, default=40, help="lines of a part")
    ap.add_argument("--seconds", type=float, default=1e9, help="start no new part after this long")
    ap.add_argument("--hibari", default=None)
    ap.add_argument("--programs", default="")
    a = ap.parse_args()
    import multiprocessing as mp

    os.makedirs(a.out, exist_ok=True)
    t0 = time.time()
    every = lines(a.text)
    # what is judged by is said by nobody in training
    judged = list(jobs(every, a, t0 + a.seconds)) if a.judge else None
    with open(f"{a.out}/lines.tmp", "w") as f:
        f.writelines(json.dumps(x) + "\n" for x in every)
    os.rename(f"{a.out}/lines.tmp", f"{a.out}/lines.jsonl")
    total = 0.0
    with mp.get_context("spawn").Pool(a.workers) as pool:
        work = judged or jobs(every, a, t0 + a.seconds)
        for n, seconds in enumerate(pool.imap_unordered(part, work)):
            total += seconds
            if n % 100 == 0:
                print(f"[said] {n + 1} parts, {total / 3600:.2f} h in {time.time() - t0:.0f} s", flush=True)
            if time.time() > t0 + a.seconds:
                break
        pool.terminate()
    open(f"{a.out}/DONE", "w").write("ok")
    print(f"[said] done: {total / 3600:.2f} h in {time.time() - t0:.0f} s", flush=True)


if __name__ == "__main__":
    main()
