#!/usr/bin/env python3
"""Draws DIR/samples.jsonl of siege.py: memory over time. `python3 tools/siege_plot.py DIR/samples.jsonl > siege.svg`"""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 280, 60, 16, 56, 36
STYLE = """.bg{fill:#fcfcfd}.t{fill:#1d2939;font-weight:600}.s{fill:#667085;font-size:12px}.grid{stroke:#e4e7ec}
.rss{fill:none;stroke:#2f6db5;stroke-width:1.4}.rest{fill:#2f8f4e}
@media (prefers-color-scheme:dark){.bg{fill:#0d1117}.t{fill:#e6edf3}.s{fill:#9aa4b2}.grid{stroke:#2a313c}.rss{stroke:#6aa5ea}.rest{fill:#56c77a}}"""


def svg(path):
    samples = [json.loads(line) for line in Path(path).read_text().splitlines()]
    longest, most = max(samples[-1]["at"], 1), max(100, *(taken["rss"] for taken in samples))
    step = next(step for step in (50, 100, 200, 500, 1000) if most / step <= 6)
    top = (int(most / step) + 1) * step
    x = lambda at: LEFT + at / longest * (WIDTH - LEFT - RIGHT)
    y = lambda rss: HEIGHT - BOTTOM - rss / top * (HEIGHT - TOP - BOTTOM)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="ui-sans-serif, '
             'system-ui, sans-serif" font-size="14" role="img" aria-labelledby="t">',
             f'<title id="t">Memory of a besieged server over {longest / 60:.0f} minutes</title>',
             f"<style>{STYLE}</style>", f'<rect class="bg" width="{WIDTH}" height="{HEIGHT}"/>',
             f'<text class="t" x="{LEFT}" y="24">Resident memory under mixed attacks, MiB</text>',
             f'<text class="s" x="{LEFT}" y="42">a sample every 10 s; dots: no attack runs, everything is given back'
             "</text>"]
    for value in range(0, top + 1, step):
        parts += [f'<path class="grid" d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}"/>',
                  f'<text class="s" x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>']
    minutes = next(minutes for minutes in (1, 2, 5, 10, 20, 60) if longest / 60 / minutes <= 10)
    for at in range(0, int(longest / 60) + 1, minutes):
        parts.append(f'<text class="s" x="{x(at * 60):.1f}" y="{HEIGHT - 14}" text-anchor="middle">{at} min</text>')
    points = " ".join(f"{x(taken['at']):.1f},{y(taken['rss']):.1f}" for taken in samples)
    parts.append(f'<polyline class="rss" points="{points}"/>')
    parts += [f'<circle class="rest" cx="{x(taken["at"]):.1f}" cy="{y(taken["rss"]):.1f}" r="3.5"/>'
              for taken in samples if taken["rest"]]
    return "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    print(svg(sys.argv[1]), end="")
