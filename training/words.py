"""How the teacher pronounces each word of every text: the talker learns to read from it.

    python words.py TEXT_DIR [--hibari FOLDER] [--workers N]

Writes TEXT_DIR/words.txt: a line for each text, its words' phonemes with a space between words; an empty line where the
teacher says other words than are written (numbers, abbreviations).
"""

import argparse, os
from synth import Teacher

T = None


def work(job):
    global T
    path, texts = job
    T = T or Teacher(path)
    lines = []
    for text in texts:
        said = " ".join(T.h.phonemize(text))
        lines.append(said if len(said.split()) == len(text.split()) else "")
    return lines


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("text")
    ap.add_argument("--hibari", default=None, help="folder with the package, if it is not installed")
    ap.add_argument("--workers", type=int, default=os.cpu_count())
    a = ap.parse_args()
    import multiprocessing as mp

    texts = open(f"{a.text}/texts.txt").read().split("\n")[:-1]
    with mp.get_context("spawn").Pool(a.workers) as p:
        parts = p.map(work, [(a.hibari, texts[i : i + 2000]) for i in range(0, len(texts), 2000)])
    lines = [line for part in parts for line in part]
    open(f"{a.text}/words.txt", "w").write("\n".join(lines) + "\n")
    print(f"{sum(map(bool, lines))} of {len(lines)} texts with a pronunciation for each word")
