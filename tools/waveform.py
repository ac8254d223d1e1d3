#!/usr/bin/env python3
"""Draws the waveform of a wav file as an SVG.

    omni-actors say --markup brackets --seed 5 -o two.wav \\
        "Are you ready? [pause: 0.5s] [voice: alto] Of course. [voice: default] Then we go."
    tools/waveform.py two.wav --title "Are you ready? ..." --mark "0.00 heart: Are you ready?" ... -o docs/images/markup.svg

Each --mark is "BEGIN TEXT", with BEGIN in seconds: a line at that time and the text behind it. A silence of at least
0.1 s whose samples are all zero is shaded, and its length told. Needs nothing but Python 3.9.
"""

import argparse
import array
import sys
import wave
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1000, 230, 20, 20, 64, 190
COLUMNS = 480
LEAST_SILENCE_S = 0.1

STYLE = """
.bg{fill:#fcfcfd}.t{fill:#1d2939}.s{fill:#667085;font-size:12px}.grid{stroke:#e4e7ec}.wave{fill:#2f6db5}.rest{fill:#f79009;fill-opacity:.16}
.mark{stroke:#d92d20;stroke-dasharray:3 3}.m{fill:#b42318;font-size:12px}
@media (prefers-color-scheme:dark){.bg{fill:#0d1117}.t{fill:#e6edf3}.s{fill:#9aa4b2}.grid{stroke:#2a313c}.wave{fill:#4f8fd6}.mark{stroke:#ff7b72}.m{fill:#ff9b93}}
"""


def read(path):
    """The samples of a file of 16 bits, mono, and its rate."""
    with wave.open(str(path)) as file:
        if (file.getsampwidth(), file.getnchannels()) != (2, 1):
            sys.exit(f"{path}: not 16 bits, mono")
        samples = array.array("h", file.readframes(file.getnframes()))
        return samples, file.getframerate()


def silences(samples, least):
    """Runs of at least so many zero samples: where each begins and ends."""
    found, begin = [], None
    for at, sample in enumerate([*samples, 1]):
        if sample == 0:
            begin = at if begin is None else begin
        elif begin is not None:
            if at - begin >= least:
                found.append((begin, at))
            begin = None
    return found


def draw(samples, rate, title, marks):
    """The picture."""
    x = lambda at: LEFT + (WIDTH - LEFT - RIGHT) * at / len(samples)
    middle = (TOP + BOTTOM) / 2
    loudest = max(max(samples), -min(samples), 1)
    y = lambda sample: middle - sample / loudest * (BOTTOM - TOP) / 2
    columns = []
    for column in range(COLUMNS):
        part = samples[len(samples) * column // COLUMNS : max(len(samples) * (column + 1) // COLUMNS, 1)]
        columns.append((max(part, default=0), min(part, default=0)))
    step = (WIDTH - LEFT - RIGHT) / COLUMNS
    top = [f"{LEFT + step * i:.1f} {y(high):.1f}" for i, (high, _) in enumerate(columns)]
    low = [f"{LEFT + step * i:.1f} {y(low) + 0.5:.1f}" for i, (_, low) in enumerate(columns)]
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="ui-sans-serif, system-ui, sans-serif" font-size="14" role="img" aria-labelledby="t">',
        f'<title id="t">{escape(title)}</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="bg" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="t" x="{LEFT}" y="24">{escape(title)}</text>',
    ]
    for begin, end in silences(samples, int(LEAST_SILENCE_S * rate)):
        out.append(f'<rect class="rest" x="{x(begin):.1f}" y="{TOP}" width="{x(end) - x(begin):.1f}" height="{BOTTOM - TOP}"/>')
        told = f"{(end - begin) / rate:.2f} s of zeros"
        out.append(f'<text class="s" x="{(x(begin) + x(end)) / 2:.1f}" y="{BOTTOM - 6}" text-anchor="middle">{told}</text>')
    out.append(f'<path class="wave" d="M{"L".join(top)}L{"L".join(reversed(low))}Z"/>')
    for begin, text in marks:
        at = x(begin * rate)
        out.append(f'<path class="mark" d="M{at:.1f} {TOP - 18}V{BOTTOM}"/><text class="m" x="{at + 4:.1f}" y="{TOP - 8}">{escape(text)}</text>')
    seconds = len(samples) / rate
    tick = 0.5 if seconds < 8 else 2
    for number in range(int(seconds / tick) + 1):
        at = x(number * tick * rate)
        out.append(f'<path class="grid" d="M{at:.1f} {BOTTOM}v6"/><text class="s" x="{at:.1f}" y="{BOTTOM + 20}" text-anchor="middle">{number * tick:g}</text>')
    out.append(f'<text class="s" x="{WIDTH - RIGHT}" y="{BOTTOM + 34}" text-anchor="end">s</text>')
    return "\n".join([*out, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("wav", type=Path)
    parser.add_argument("--title", required=True)
    parser.add_argument("--mark", action="append", default=[], metavar="'BEGIN TEXT'")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    samples, rate = read(args.wav)
    marks = [(float(mark.split(" ", 1)[0]), mark.split(" ", 1)[1]) for mark in args.mark]
    args.output.write_text(draw(samples, rate, args.title, marks))


if __name__ == "__main__":
    main()
