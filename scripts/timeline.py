#!/usr/bin/env python3
"""Draws which steps ran when, from a server's log, as an SVG.

The server writes one line per step when it runs with OMNI_LOG=info,timeline=trace (log_format "text" or "json"):

    OMNI_LOG=info,timeline=trace omni-actors run my.toml 2> server.log
    omni-actors bench --url http://127.0.0.1:8080 --concurrency 8
    scripts/timeline.py server.log --frames 20 --load "c = 8" -o docs/images/timeline.svg

The host's lanes show the launch calls. The device's lanes show steps: the end is when the outcome was known on the host,
the beginning is that minus the device's own measure. Where a device does not measure (the CPU computes inside the launch),
a step is drawn from its launch to its end. Needs nothing but Python 3.9.
"""

import argparse
import json
import re
import statistics
import sys
from html import escape
from pathlib import Path

FIELD = re.compile(r"(\w+)=(\S+)")
ANSI = re.compile(r"\x1b\[[0-9;]*m")
NAMES = {"code2wav": "vocoder"}

LEFT, RIGHT, WIDTH, LANE, GAP, TOP = 150, 20, 1400, 34, 16, 92

STYLE = """
.bg{fill:#fcfcfd}.t{fill:#1d2939}.s{fill:#667085;font-size:12px}.grid{stroke:#e4e7ec}.lane{fill:#f2f4f7}
.n{fill:#fff;font-size:11px;text-anchor:middle}.talker0{fill:#2f6db5}.talker1{fill:#4f8fd6}.code2wav0{fill:#2f8f4e}.code2wav1{fill:#4bad6b}
.prompt{fill:#b4690e}.line{fill:none;stroke-width:1.2}.ahead{stroke:#2f8f4e}.late{stroke:#d92d20}.after{stroke:#98a2b3}
@media (prefers-color-scheme:dark){.bg{fill:#0d1117}.t{fill:#e6edf3}.s{fill:#9aa4b2}.grid{stroke:#2a313c}.lane{fill:#161b22}.ahead{stroke:#56c77a}.late{stroke:#ff7b72}}
"""


def read(path):
    """The steps of the log, by stage, in the order of the lines; a stage that started again begins a new list."""
    stages = {}
    for line in path.read_text(errors="replace").splitlines():
        if "began_us" not in line:
            continue
        if line.startswith("{"):
            fields = json.loads(line)
        else:
            fields = {k: v.strip('"') for k, v in FIELD.findall(ANSI.sub("", line))}
        try:
            step = {k: int(fields[k]) for k in ("step", "rows", "units", "prompt", "began_us", "returned_us", "known_us")}
        except KeyError:
            continue
        device = fields.get("device_us")
        step["device_us"] = None if device is None else int(device)
        begin = step["began_us"] if device is None else step["known_us"] - int(device)
        step["runs_us"] = begin
        lists = stages.setdefault(fields["stage"], [[]])
        if lists[-1] and step["step"] <= lists[-1][-1]["step"]:
            lists.append([])
        before = lists[-1][-1] if lists[-1] else None
        follows = before is not None and before["step"] == step["step"] - 1
        step["ahead"] = follows and step["returned_us"] <= before["known_us"]
        lists[-1].append(step)
    return stages


def window(lists, first, frames):
    """`frames` steps in a row from step `first`; without `first`, those with the most rows and the fewest prompts."""
    if first is not None:
        for steps in reversed(lists):
            for i, step in enumerate(steps):
                if step["step"] == first:
                    return steps[i : i + frames]
        sys.exit(f"no talker step {first} in the log; it has up to {lists[-1][-1]['step']}")
    windows = [steps[i : i + frames] for steps in lists for i in range(max(1, len(steps) - frames + 1))]
    # Of equals, the shortest: no pauses between requests.
    return max(windows, key=lambda w: (len(w), sum(s["rows"] for s in w), -sum(s["prompt"] for s in w), w[0]["known_us"] - w[-1]["known_us"]))


def tick(span_us):
    """Distance of the axis' ticks, so that there are about a dozen."""
    for ms in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if span_us / 1000 / ms <= 15:
            return ms
    return 2000


class Drawing:
    """Shapes over a time axis that begins at `begin` and ends at `end`, in microseconds."""

    def __init__(self, begin, end):
        self.begin, self.end, self.shapes = begin, end, []

    def x(self, us):
        us = min(max(us, self.begin), self.end)
        return LEFT + (us - self.begin) / (self.end - self.begin) * (WIDTH - LEFT - RIGHT)

    def bar(self, y, height, begin, end, kind, label, title):
        x0, x1 = self.x(begin), self.x(end)
        width = max(x1 - x0 - 0.6, 1.2)
        self.shapes.append(
            f'<g><title>{escape(title)}</title><rect class="{kind}" x="{x0:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="1.5"/>'
        )
        if label and width > 6.2 * len(label) + 3:
            self.shapes.append(f'<text class="n" x="{x0 + width / 2:.1f}" y="{y + height / 2 + 4:.1f}">{escape(label)}</text>')
        self.shapes.append("</g>")

    def text(self, x, y, text, kind="t", **more):
        more = "".join(f' {k.replace("_", "-")}="{v}"' for k, v in more.items())
        self.shapes.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>')

    def line(self, x0, y0, x1, y1, kind):
        self.shapes.append(f'<path class="{kind}" d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}"/>')


def about(stage, step):
    """What a pointer on a bar tells."""
    device = "" if step["device_us"] is None else f", {step['device_us'] / 1000:.2f} ms on the device"
    prompt = f" ({step['prompt']} of prompts)" if step["prompt"] else ""
    return f"{NAMES.get(stage, stage)} step {step['step']}: {step['rows']} rows, {step['units']} units{prompt}{device}"


def label(stage, step):
    """What a bar says: rows, and frames of each for the vocoder."""
    if stage == "code2wav" and step["rows"] and step["units"] != step["rows"]:
        return f"{step['rows']}×{step['units'] / step['rows']:g}"
    return str(step["rows"]) + (f"+{step['prompt']}p" if step["prompt"] else "")


def busy(steps, begin, end):
    """Share of the time in which one of the steps ran."""
    covered, last = 0, begin
    for step in sorted(steps, key=lambda s: s["runs_us"]):
        a, b = max(step["runs_us"], last), min(step["known_us"], end)
        covered += max(0, b - a)
        last = max(last, b)
    return covered / (end - begin)


def draw(stages, frames, load):
    """The picture of the talker's `frames` and of what the vocoder did meanwhile."""
    begin = min(frames[0]["began_us"], frames[0]["runs_us"])
    end = max(s["known_us"] for s in frames)
    d = Drawing(begin, end)
    step_ms = tick(end - begin)
    everyone = {"talker": [s for steps in stages["talker"] for s in steps]}
    everyone["code2wav"] = [s for steps in stages.get("code2wav", []) for s in steps]
    shown = {name: [s for s in steps if s["known_us"] > begin and min(s["began_us"], s["runs_us"]) < end] for name, steps in everyone.items()}
    on_device = any(s["device_us"] is not None for steps in shown.values() for s in steps)
    bottom = TOP + 4 * LANE + 3 * GAP
    at = 0.0
    while at * 1000 <= end - begin:
        x = d.x(begin + at * 1000)
        d.line(x, TOP - 4, x, bottom + 4, "grid")
        d.text(x, bottom + 20, f"{at:g}", "s", text_anchor="middle")
        at += step_ms
    d.text(WIDTH - RIGHT, bottom + 38, "ms", "s", text_anchor="end")

    y = TOP
    for name, steps in shown.items():
        for lane in ("launch", "device" if on_device else "computes"):
            d.shapes.append(f'<rect class="lane" x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{LANE}"/>')
            words = {"launch": "launch calls", "device": "on the device", "computes": "computes"}[lane]
            d.text(10, y + 15, NAMES.get(name, name), font_weight="600")
            d.text(10, y + 29, words, "s")
            for step in steps:
                kind = "prompt" if step["prompt"] else f"{name}{step['step'] % 2}"
                if lane == "launch":
                    if step["returned_us"] < begin or step["began_us"] > end:
                        continue
                    d.bar(y + 4, LANE - 8, step["began_us"], step["returned_us"], kind, "", about(name, step) + f", launched within {(step['returned_us'] - step['began_us']) / 1000:.2f} ms")
                else:
                    d.bar(y + 2, LANE - 4, step["runs_us"], step["known_us"], kind, label(name, step), about(name, step))
            y += LANE + GAP
        top = y - LANE - GAP
        for step in steps:
            if step["device_us"] is None or step["began_us"] < begin or step["runs_us"] > end:
                continue
            kind = "after" if name != "talker" else "ahead" if step["ahead"] else "late"
            d.line(d.x(step["returned_us"]), top - GAP - 4, d.x(step["runs_us"]), top + 2, f"line {kind}")

    ahead = sum(s["ahead"] for s in frames)
    rows = sorted({s["rows"] for s in frames})
    rows = f"{rows[0]}" if len(rows) == 1 else f"{rows[0]} to {rows[-1]}"
    gaps = [b["known_us"] - a["known_us"] for a, b in zip(frames, frames[1:])]
    facts = [f"{ahead} of {len(frames)} frames were launched before the one before them was known"]
    if gaps:
        facts.append(f"a frame every {statistics.median(gaps) / 1000:.2f} ms (median)")
    facts.append(f"the talker ran {100 * busy(shown['talker'], begin, end):.0f} % of the time, the vocoder {100 * busy(shown['code2wav'], begin, end):.0f} %")
    title = f"{len(frames)} frames" + (f", {load}" if load else "") + f": talker steps {frames[0]['step']} to {frames[-1]['step']}, {rows} rows"
    d.text(10, 26, title, font_size="16", font_weight="600")
    d.text(10, 48, "; ".join(facts), "s")
    legend = "numbers: rows (rows × frames of each, +positions of prompts)"
    if on_device:
        legend += "; lines: from launch to run, of the talker green if the frame before was not known yet and red if it was"
    d.text(10, 68, legend, "s")
    height = bottom + 48
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="ui-sans-serif, system-ui, sans-serif" font-size="14" role="img" aria-labelledby="t d">',
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape("; ".join(facts))}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="bg" width="{WIDTH}" height="{height}"/>',
            *d.shapes,
            "</svg>\n",
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--from", dest="first", type=int, metavar="STEP", help="the first talker step; by default where most rows run")
    parser.add_argument("--frames", type=int, default=20, help="how many talker steps (20)")
    parser.add_argument("--load", default="", help='for the title, such as "c = 8, 1.7B on an H200"')
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    if args.frames < 1:
        parser.error("--frames: at least 1")
    try:
        stages = read(args.log)
    except (OSError, ValueError) as error:
        sys.exit(f"{args.log}: {error}")
    if "talker" not in stages:
        sys.exit(f"{args.log}: no steps of a talker; run the server with OMNI_LOG=info,timeline=trace")
    frames = window(stages["talker"], args.first, args.frames)
    args.output.write_text(draw(stages, frames, args.load))
    print(f"{args.output}: talker steps {frames[0]['step']} to {frames[-1]['step']}")


if __name__ == "__main__":
    main()
