"""The figures of the voice's model card, all by one command.

    python card.py CHECKPOINT TEXT_DIR OUT_DIR --binary target/release/omni-actors [--codec DIR --vocoder DIR] [--hibari FOLDER]
                   [--judge-python PYTHON] [--mos-python PYTHON] [--only heldout,hard,long,random,teacher] [--n 500]

Speaks the sentences that were kept out of training through the runtime, with the checkpoint's own sampling: 200 plain ones
and 40 with numbers, dates and names by each voice, 500 random ones by heart. Judges: word errors by tools/wer.py (whisper
base), lengths against the teacher's, DNSMOS by mos.py in a Python that has speechmos. Long ones are spoken in one go: their
first third against their last one tells whether pace and pitch (drift.py) wander. With --codec and --vocoder the
teacher and its resynthesis are judged the same way. Writes OUT_DIR/card.json and card.md; a folder that is complete is not
spoken or judged again.
"""

import argparse, json, os, subprocess, sys, wave

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(HERE, "..", "tools")
sys.path.insert(0, TOOLS)
import sentences
from synth import VOICES, Teacher


def run(*command):
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def seconds(folder, i):
    with wave.open(os.path.join(folder, sentences.wav_name(i))) as f:
        return f.getnframes() / f.getframerate()


def third(source, target, last):
    """The first third of a wav file, or the last one."""
    with wave.open(source) as f:
        n, head = f.getnframes() // 3, f.getparams()
        f.setpos(f.getnframes() - n if last else 0)
        part = f.readframes(n)
    with wave.open(target, "wb") as f:
        f.setparams(head)
        f.writeframes(part)


class Card:
    def __init__(self, a):
        self.a, self.out = a, {}
        os.makedirs(a.out, exist_ok=True)

    def sentences(self, name, texts):
        path = f"{self.a.out}/{name}.txt"
        open(path, "w").write("\n".join(texts) + "\n")
        return path

    def speak(self, name, texts, voice, greedy=False, config=None):
        folder = f"{self.a.out}/{name}"
        if not os.path.exists(f"{folder}/{sentences.wav_name(len(texts))}"):
            how = ["--greedy"] if greedy else []
            path = self.sentences(name, texts)
            say = [sys.executable, f"{TOOLS}/say_all.py", "--sentences", path, "--out", folder]
            source = ["--config", config] if config else ["--checkpoint", self.a.checkpoint]
            run(*say, "--binary", self.a.binary, "--voice", voice, *how, "--", *source)
        return folder

    def heard(self, name, folder, texts):
        """What the judge says of a folder: tools/wer.py's results."""
        heard = f"{folder}.json"
        if not os.path.exists(heard):
            wer = [self.a.judge_python, f"{TOOLS}/wer.py", "--sentences", self.sentences(name, texts), "--wavs", folder]
            run(*wer, "--json", heard)
        return json.load(open(heard))["results"][0]

    def judge(self, name, folder, texts):
        got = self.heard(name, folder, texts)
        figures = {k: got[k] for k in ("wer", "cer", "exact", "sentences", "words")}
        if self.a.mos_python:
            figures["dnsmos"] = json.loads(run(self.a.mos_python, f"{HERE}/mos.py", folder).splitlines()[-1])[folder]
        self.put(name, figures)

    def put(self, name, figures):
        self.out[name] = figures
        print(name, figures, flush=True)
        json.dump(self.out, open(f"{self.a.out}/card.json", "w"), indent=1)

    def lengths(self, name, folder, texts):
        """How many are 30 % longer or shorter than the teacher says them, and which."""
        import numpy as np

        teacher, rng, odd = Teacher(self.a.hibari), np.random.default_rng(0), []
        for i, text in enumerate(texts, 1):
            said = teacher.voice(teacher.nets(teacher.ids(text)), "heart", rng)
            ratio = seconds(folder, i) / (len(said[0]) / 24000)
            if not 0.7 <= ratio <= 1.3:
                odd.append([text, round(ratio, 2)])
        self.put(name, {"sentences": len(texts), "off by more than 30 %": len(odd), "which": odd[:20]})

    def long(self, voice, held):
        """Runs of sentences of some 25 s, each in one go, and the same sentences in the opposite order, so that the first
        thirds say on the whole what the last ones say."""
        runs = [[]]
        for text in held:
            if sum(map(len, runs[-1])) > 360:
                runs.append([])
            runs[-1].append(text)
        runs = [order for some in runs[:10] if sum(map(len, some)) > 360 for order in (some, some[::-1])]
        if not runs:
            return
        texts, name = [" ".join(some) for some in runs], f"{voice}-long"
        config = f"{self.a.out}/long.toml"
        checkpoint = json.dumps(os.path.abspath(self.a.checkpoint))
        open(config, "w").write(f"[model]\ncheckpoint = {checkpoint}\n[speech]\nmax_segment_chars = 1000\n")
        folder = self.speak(name, texts, voice, config=config)
        thirds, words = {"first": f"{folder}-first", "last": f"{folder}-last"}, {}
        for which, to in thirds.items():
            os.makedirs(to, exist_ok=True)
            for i in range(1, len(texts) + 1):
                file = sentences.wav_name(i)
                third(f"{folder}/{file}", f"{to}/{file}", which == "last")
            length = sum(seconds(to, i) for i in range(1, len(texts) + 1))
            records = self.heard(name, to, texts)["records"]
            words[which] = sum(len(x["heard"].split()) for x in records) / length
        got = self.heard(name, folder, texts)
        figures = {"texts": len(texts), "seconds each": round(got["seconds"] / len(texts), 1), "wer": got["wer"]}
        figures |= {f"words a second, {which} third": round(rate, 3) for which, rate in words.items()}
        if self.a.mos_python:
            hertz = json.loads(run(self.a.mos_python, f"{HERE}/drift.py", *thirds.values()).splitlines()[-1])
            figures |= {f"pitch in Hz, {which} third": hertz[to] for which, to in thirds.items()}
        self.put(f"{voice} in one go", figures)

    def page(self):
        rows = [
            "| sentences | word errors | character errors | word for word | DNSMOS |",
            "| --- | --- | --- | --- | --- |",
        ]
        for name, f in self.out.items():
            if "cer" in f:
                rows.append(
                    f"| {name} ({f['sentences']}, {f['words']} words) | {f['wer']:.1f} % | {f['cer']:.1f} % | {f['exact']} | {f.get('dnsmos', '')} |"
                )
        rows += [f"\n{name}: {f}" for name, f in self.out.items() if "cer" not in f]
        open(f"{self.a.out}/card.md", "w").write("\n".join(rows) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for x in ("checkpoint", "text", "out"):
        parser.add_argument(x)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--codec")
    parser.add_argument("--vocoder")
    parser.add_argument("--hibari", help="folder with the teacher's package, if it is not installed")
    parser.add_argument("--judge-python", default=sys.executable, help="a Python with tools/requirements.txt")
    parser.add_argument("--mos-python", help="a Python with speechmos and librosa; no DNSMOS without")
    parser.add_argument("--only", default="heldout,hard,long,random,teacher")
    parser.add_argument("--n", type=int, default=500, help="at most so many sentences of each list")
    a = parser.parse_args()
    card, parts = Card(a), a.only.split(",")
    held, hard = sentences.read(f"{HERE}/heldout.txt")[: a.n], sentences.read(f"{HERE}/hard.txt")[: a.n]
    for voice in VOICES:
        for name, texts in (("heldout", held), ("hard", hard)):
            if name in parts:
                label = f"{voice} {'plain' if name == 'heldout' else 'numbers, dates, names'}"
                card.judge(label, card.speak(f"{voice}-{name}", texts, voice), texts)
    if "heldout" in parts:
        card.judge("heart plain, greedy", card.speak("heart-greedy", held, "heart", greedy=True), held)
    if "long" in parts:
        for voice in VOICES:
            card.long(voice, held)
    if "teacher" in parts and a.codec and a.vocoder:
        plain = card.sentences("plain", held)
        hibari = ["--hibari", a.hibari] if a.hibari else []
        resynth = [
            sys.executable,
            f"{HERE}/resynth.py",
            "--sentences",
            plain,
            "--codec",
            a.codec,
            "--vocoder",
            a.vocoder,
        ]
        run(*resynth, "--out", f"{a.out}/resynth", *hibari)
        for who in ("teacher", "codec"):
            card.judge(f"{who} plain", f"{a.out}/resynth/{who}", held)
    if "random" in parts:
        some = sentences.read(f"{a.text}/random.txt")[: a.n]
        card.lengths("lengths of random sentences", card.speak("heart-random", some, "heart"), some)
    card.page()


if __name__ == "__main__":
    main()
