"""The whole recipe, one stage after the other or side by side, from an empty folder to a checkpoint with goldens.

    python recipe.py WORK_DIR [--device cuda] [--minutes codec=5,thinker=5,talker=14,vocoder=13,ears=60] [--wordnet FOLDER]
                     [--tokenizer FOLDER] [--tiny]

A stage that has left its DONE file is skipped, so a run that was cut short goes on where it was; a stage's log is
WORK_DIR/log/STAGE.log and its last line is shown while it runs. --tiny: two minutes of speech and a few seconds of each
training, to see that everything fits together (smoke.sh does that on a CPU).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Recipe:
    """Runs stages as processes of their own."""

    def __init__(self, work):
        self.work = Path(work).resolve()
        (self.work / "log").mkdir(parents=True, exist_ok=True)
        self.running = {}

    def start(self, name, script, *args, done):
        """Starts a stage unless its DONE file is there."""
        if (self.work / done).exists():
            print(f"{name}: done before")
            return
        log = open(self.work / "log" / f"{name}.log", "a")
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "true"}
        command = [os.environ.get("PYTHON", sys.executable), str(HERE / script), *map(str, args)]
        self.running[name] = (subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env), done)

    def wait(self, *names):
        """Until these stages have ended; a failed one ends the run."""
        last = 0.0
        while any(name in self.running for name in names):
            time.sleep(0.5)
            for name, (process, done) in list(self.running.items()):
                if process.poll() is None:
                    continue
                del self.running[name]
                if process.returncode:
                    for other, _ in self.running.values():
                        other.terminate()
                    raise SystemExit(f"{name} failed; see {self.work}/log/{name}.log\n{self.tail(name, 12)}")
                (self.work / done).parent.mkdir(parents=True, exist_ok=True)
                (self.work / done).touch()
                print(f"{name}: {self.tail(name)}", flush=True)
            if time.monotonic() - last > 15:
                last = time.monotonic()
                for name in self.running:
                    print(f"  {self.tail(name)}", flush=True)

    def tail(self, name, lines=1):
        """The last lines of a stage's log."""
        text = (self.work / "log" / f"{name}.log").read_text(errors="replace").rstrip().splitlines()
        return "\n".join(line[:200] for line in text[-lines:])


def main():
    """All stages in the order of their needs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", default="codec=5,thinker=5,talker=14,vocoder=13,ears=60")
    parser.add_argument("--wordnet", default="/usr/share/wordnet")
    parser.add_argument(
        "--tokenizer", default="", help="folder with a text tokenizer to keep, such as an earlier checkpoint"
    )
    parser.add_argument("--hibari", default="", help="folder with the teacher's package, if it is not installed")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    minutes = {k: float(v) for k, v in (pair.split("=") for pair in args.minutes.split(","))}
    w, tiny, device = Path(args.work).resolve(), args.tiny, ["--device", args.device]
    hibari = ["--hibari", args.hibari] if args.hibari else []
    if tiny:
        minutes = dict.fromkeys(minutes, 0.4)
    run = Recipe(w)
    cores = os.cpu_count() or 2
    limit = ["--limit", 120] if tiny else []

    tokenizer = ["--tokenizer", args.tokenizer] if args.tokenizer else []
    run.start("texts", "texts.py", w / "text", "--wordnet", args.wordnet, *tokenizer, *limit, done="text/DONE")
    run.wait("texts")
    run.start("words", "words.py", w / "text", *hibari, done="text/words.txt")

    workers = 1 if tiny else max(2, cores * 2 // 3)
    small = ["--part", 30] if tiny else ["--part", 100, "--dual", 0.5]
    run.start(
        "synth", "synth.py", w / "text/texts.txt", w / "pool", "--workers", workers, *hibari, *small, done="pool/DONE"
    )
    if tiny:
        run.wait("synth")
    scale = ["--batch", 4, "--hours", 1, "--min_utts", 20, "--warm", 1] if tiny else []
    run.start(
        "codec",
        "train_codec.py",
        w / "pool",
        w / "codec",
        "--minutes",
        minutes["codec"],
        *device,
        *scale,
        done="codec/DONE",
    )
    if tiny:
        run.wait("codec")
    scale = ["--batch", 4, "--workers", 0] if tiny else []
    run.start(
        "thinker",
        "train_thinker.py",
        w / "text",
        w / "thinker",
        "--minutes",
        minutes["thinker"],
        *device,
        *scale,
        done="thinker/DONE",
    )
    run.wait("codec", "thinker") if not tiny else run.wait("thinker")

    run.start("encode", "encode.py", w / "pool", w / "codec", w / "codes", *device, done="codes/DONE")
    if tiny:
        run.wait("encode")
    run.wait("words")
    scale = ["--rows", 3840, "--predict", 100, "--workers", 0, "--hours", 0.01] if tiny else ["--compile", 1]
    run.start(
        "talker",
        "train_talker.py",
        w / "text",
        w / "codes",
        w / "thinker",
        w / "talker",
        "--minutes",
        minutes["talker"],
        *device,
        *scale,
        done="talker/DONE",
    )
    if tiny:
        run.wait("talker")
    scale = ["--batch", 1, "--hours", 1, "--min_utts", 20] if tiny else ["--compile", 1, "--hours", 60, "--lr", 5e-4]
    run.start(
        "vocoder",
        "train_vocoder.py",
        w / "pool",
        w / "codec",
        w / "codes",
        w / "c2w",
        "--minutes",
        minutes["vocoder"],
        *device,
        *scale,
        done="c2w/DONE",
    )
    run.wait("synth", "encode", "talker", "vocoder")

    run.start(
        "assemble",
        "assemble.py",
        w / "text",
        w / "thinker",
        w / "talker",
        w / "c2w",
        w / "spoken",
        done="spoken/DONE",
    )
    some = ["--part", 10] if tiny else []
    for name, what in (("judged", ["--judge", 8 if tiny else 300]), ("said", ["--parts", 8] if tiny else [])):
        run.start(
            name, "said.py", w / "text", w / name, "--workers", workers, *hibari, *some, *what, done=f"{name}/DONE"
        )
        if tiny or name == "judged":
            run.wait(name)
    run.wait("assemble")
    scale = ["--clips", 6, "--workers", 0, "--hours", 0.01, "--room", 0.5] if tiny else []
    ears = [w / "text", w / "said", w / "spoken", w / "ears", "--minutes", minutes["ears"], *device, *scale]
    judge = [] if tiny else ["--judge", w / "judged"]
    run.start("ears", "train_ears.py", *ears, *judge, done="ears/DONE")
    run.wait("said", "ears")
    run.start("hears", "with_ears.py", w / "spoken", w / "ears", w / "checkpoint", done="checkpoint/DONE")
    run.wait("hears")
    (w / "checkpoint/DONE").unlink()

    few = ["--limit", 3] if tiny else []
    speak = [w / "checkpoint", w / "text"]
    for name, seed, texts in (("aligned", 1, 1800), ("warped", 2, 300), ("heard", 3, 80)):
        how = [*device, *hibari, "--seed", seed, *(few or ["--limit", texts])]
        how += [] if name == "aligned" else ["--warp"]
        run.start(name, "aligned.py", *speak, w / name, *how, done=f"{name}/DONE")
    run.wait("aligned", "warped", "heard")
    # A voice of a tiny run ends no sentence.
    if not tiny:
        learnt = [w / "aligned", w / "warped", w / "checkpoint/aligner.safetensors", "--judge", w / "heard"]
        run.start("aligner", "train_aligner.py", *speak, *learnt, done="aligner.DONE")
        run.wait("aligner")
    run.start(
        "goldens", "goldens.py", w / "checkpoint", w / "golden", *(["--frames", 12] if tiny else []), done="golden/DONE"
    )
    run.wait("goldens")
    (w / "golden/DONE").unlink(missing_ok=True)
    files = sorted(p.name for p in (w / "checkpoint").iterdir())
    print(
        json.dumps(
            {"checkpoint": str(w / "checkpoint"), "files": files, "goldens": len(list((w / "golden").glob("*.json")))}
        )
    )


if __name__ == "__main__":
    main()
