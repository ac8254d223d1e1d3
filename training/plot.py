"""The curves of a run's logs as one picture: python plot.py OUT.png LOG...

A stage that went on from earlier weights (`--init`) is drawn behind its run before; give the logs in that order. A stage
without a log is left out.
"""

import math
import re
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

CURVES = {
    "codec: L1 of the log mel": (r"\[codec\] step \d+ (\d+)s l1 ([\d.]+)", {}),
    "codec: phonemes from group 0": (r"\[codec\] step \d+ (\d+)s .*phonemes ([\d.]+)", {}),
    "thinker: loss": (r"\[thinker\] step \d+ (\d+)s loss ([\d.]+)", {"log": True}),
    "talker, unseen texts: group 0": (r"\[talker\] step \d+ (\d+)s EMA c0 ([\d.]+)", {}),
    "talker, unseen texts: phonemes of words": (r"\[talker\] step \d+ (\d+)s EMA .*words ([\d.]+)", {"log": True}),
    "vocoder: mel distance": (r"\[vocoder\] step \d+ (\d+)s mel ([\d.]+)", {}),
}


def in_a_row(points):
    """[(seconds, value)] of runs one after the other, each from 0 -> minutes, values; a gap where the next run begins"""
    minutes, values, begun, last = [], [], 0.0, 0.0
    for second, value in points:
        if second < last:
            begun += last
            minutes.append(math.nan)
            values.append(math.nan)
        last = second
        minutes.append((begun + second) / 60)
        values.append(value)
    return minutes, values


def main():
    text = "\n".join(open(path, errors="replace").read() for path in sys.argv[2:])
    found = [
        (title, [(float(a), float(b)) for a, b in re.findall(pattern, text)], options)
        for title, (pattern, options) in CURVES.items()
    ]
    drawn = [curve for curve in found if curve[1]]
    columns = min(len(drawn), 3)
    lines = -(-len(drawn) // 3)
    figure, axes = plt.subplots(lines, columns, figsize=(4 * columns, 3 * lines), squeeze=False)
    for axis in axes.flat[len(drawn) :]:
        axis.axis("off")
    for axis, (title, points, options) in zip(axes.flat, drawn):
        axis.plot(*in_a_row([p for p in points if p[0] > 3]), lw=1.2)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("minutes")
        axis.grid(alpha=0.3)
        if options.get("log"):
            axis.set_yscale("log")
    figure.tight_layout()
    figure.savefig(sys.argv[1], dpi=70)


if __name__ == "__main__":
    main()
