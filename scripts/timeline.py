#!/usr/bin/env python3
"""Draws a trace as an SVG: which steps ran when, or with --tracks everything of a few milliseconds.

    omni-actors trace --concurrency 8 -o trace.json
    scripts/timeline.py trace.json --frames 20 --load "c = 8" -o timeline.svg
    scripts/timeline.py trace.json --tracks 40 -o docs/images/tracing.svg

The first picture: the host's tracks show the launch calls, the device's tracks the steps. Their end is when the outcome was
known on the host, their beginning that minus the device's own measure; where a device does not measure (the CPU computes
inside the launch), a step is drawn from its launch to its end. The second: every track of every stage, and the arrows of the
trace. Needs nothing but Python 3.9.
"""

import argparse
import json
import statistics
import sys
from html import escape
from pathlib import Path

NAMES = {"vocoder": "vocoder"}

LEFT, RIGHT, WIDTH, TRACK, GAP, TOP = 150, 20, 1400, 34, 16, 92
THIN = 22
PHASES = {"preprocess": "other", "backbone": "p0", "code_predictor": "p1", "sampling": "p2", "postprocess": "other", "vocoder": "p3"}

STYLE = """
.bg{fill:#fcfcfd}.t{fill:#1d2939}.s{fill:#667085;font-size:12px}.grid{stroke:#e4e7ec}.track{fill:#f2f4f7}
.n{fill:#fff;font-size:11px;text-anchor:middle}.talker0{fill:#2f6db5}.talker1{fill:#4f8fd6}.vocoder0{fill:#2f8f4e}.vocoder1{fill:#4bad6b}
.prompt{fill:#b4690e}.thinker0{fill:#7a5af8}.thinker1{fill:#9b8afb}.other{fill:#98a2b3}.p0{fill:#12b76a}.p1{fill:#f79009}.p2{fill:#d92d20}.p3{fill:#0e7090}.line{fill:none;stroke-width:1.2}.ahead{stroke:#2f8f4e}.late{stroke:#d92d20}.after{stroke:#98a2b3}
@media (prefers-color-scheme:dark){.bg{fill:#0d1117}.t{fill:#e6edf3}.s{fill:#9aa4b2}.grid{stroke:#2a313c}.track{fill:#161b22}.ahead{stroke:#56c77a}.late{stroke:#ff7b72}}
"""


def load_trace(path):
    """The events of a file, and its processes and threads by number."""
    events = json.loads(path.read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    return events, processes, threads


def read(events, processes):
    """The steps of each stage in order; a stage that started again begins a new list."""
    launches, stages = {}, {}
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        stage, args = processes[event["pid"]], event["args"]
        if event["cat"] == "launch" and event["name"].startswith("launch "):
            launches[stage, args["step"]] = (event["ts"], event["ts"] + event["dur"])
        if event["cat"] != "device" or (stage, args["step"]) not in launches:
            continue
        step = {k: args[k] for k in ("step", "sequences", "units", "prompt")}
        step["began_us"], step["returned_us"] = launches.pop((stage, args["step"]))
        step["runs_us"], step["known_us"] = event["ts"], event["ts"] + event["dur"]
        step["device_us"] = args["took_us"] if args["measured"] else None
        lists = stages.setdefault(stage, [[]])
        if lists[-1] and step["step"] <= lists[-1][-1]["step"]:
            lists.append([])
        before = lists[-1][-1] if lists[-1] else None
        follows = before is not None and before["step"] == step["step"] - 1
        step["ahead"] = follows and step["returned_us"] <= before["known_us"]
        lists[-1].append(step)
    return stages


def window(lists, first, frames):
    """`frames` steps in a row from step `first`; without `first`, those with the most sequences and the fewest prompts."""
    if first is not None:
        for steps in reversed(lists):
            for i, step in enumerate(steps):
                if step["step"] == first:
                    return steps[i : i + frames]
        sys.exit(f"no talker step {first} in the trace; it has up to {lists[-1][-1]['step']}")
    windows = [steps[i : i + frames] for steps in lists for i in range(max(1, len(steps) - frames + 1))]
    # Of equals, the shortest: no pauses between requests.
    return max(windows, key=lambda w: (len(w), sum(s["sequences"] for s in w), -sum(s["prompt"] for s in w), w[0]["known_us"] - w[-1]["known_us"]))


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
    return f"{NAMES.get(stage, stage)} step {step['step']}: {step['sequences']} sequences, {step['units']} units{prompt}{device}"


def label(stage, step):
    """What a bar says: sequences, and frames of each for the vocoder."""
    if stage == "vocoder" and step["sequences"] and step["units"] != step["sequences"]:
        return f"{step['sequences']}×{step['units'] / step['sequences']:g}"
    return str(step["sequences"]) + (f"+{step['prompt']}p" if step["prompt"] else "")


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
    everyone["vocoder"] = [s for steps in stages.get("vocoder", []) for s in steps]
    shown = {name: [s for s in steps if s["known_us"] > begin and min(s["began_us"], s["runs_us"]) < end] for name, steps in everyone.items()}
    on_device = any(s["device_us"] is not None for steps in shown.values() for s in steps)
    bottom = TOP + 4 * TRACK + 3 * GAP
    at = 0.0
    while at * 1000 <= end - begin:
        x = d.x(begin + at * 1000)
        d.line(x, TOP - 4, x, bottom + 4, "grid")
        d.text(x, bottom + 20, f"{at:g}", "s", text_anchor="middle")
        at += step_ms
    d.text(WIDTH - RIGHT, bottom + 38, "ms", "s", text_anchor="end")

    y = TOP
    for name, steps in shown.items():
        for track in ("launch", "device" if on_device else "computes"):
            d.shapes.append(f'<rect class="track" x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{TRACK}"/>')
            words = {"launch": "launch calls", "device": "on the device", "computes": "computes"}[track]
            d.text(10, y + 15, NAMES.get(name, name), font_weight="600")
            d.text(10, y + 29, words, "s")
            for step in steps:
                kind = "prompt" if step["prompt"] else f"{name}{step['step'] % 2}"
                if track == "launch":
                    if step["returned_us"] < begin or step["began_us"] > end:
                        continue
                    d.bar(y + 4, TRACK - 8, step["began_us"], step["returned_us"], kind, "", about(name, step) + f", launched within {(step['returned_us'] - step['began_us']) / 1000:.2f} ms")
                else:
                    d.bar(y + 2, TRACK - 4, step["runs_us"], step["known_us"], kind, label(name, step), about(name, step))
            y += TRACK + GAP
        top = y - TRACK - GAP
        for step in steps:
            if step["device_us"] is None or step["began_us"] < begin or step["runs_us"] > end:
                continue
            kind = "after" if name != "talker" else "ahead" if step["ahead"] else "late"
            d.line(d.x(step["returned_us"]), top - GAP - 4, d.x(step["runs_us"]), top + 2, f"line {kind}")

    ahead = sum(s["ahead"] for s in frames)
    sequences = sorted({s["sequences"] for s in frames})
    sequences = f"{sequences[0]}" if len(sequences) == 1 else f"{sequences[0]} to {sequences[-1]}"
    gaps = [b["known_us"] - a["known_us"] for a, b in zip(frames, frames[1:])]
    facts = [f"{ahead} of {len(frames)} frames were launched before the one before them was known"]
    if gaps:
        facts.append(f"a frame every {statistics.median(gaps) / 1000:.2f} ms (median)")
    facts.append(f"the talker ran {100 * busy(shown['talker'], begin, end):.0f} % of the time, the vocoder {100 * busy(shown['vocoder'], begin, end):.0f} %")
    title = f"{len(frames)} frames" + (f", {load}" if load else "") + f": talker steps {frames[0]['step']} to {frames[-1]['step']}, {sequences} sequences"
    d.text(10, 26, title, font_size="16", font_weight="600")
    d.text(10, 48, "; ".join(facts), "s")
    legend = "numbers: sequences (sequences × frames of each, +positions of prompts)"
    if on_device:
        legend += "; lines: from launch to run, of the talker green if the frame before was not known yet and red if it was"
    d.text(10, 68, legend, "s")
    return picture(d, bottom + 48, title, "; ".join(facts))


def picture(d, height, title, facts):
    """The whole file."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="ui-sans-serif, system-ui, sans-serif" font-size="14" role="img" aria-labelledby="t d">',
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape(facts)}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="bg" width="{WIDTH}" height="{height}"/>',
            *d.shapes,
            "</svg>\n",
        ]
    )


def tracks(events, processes, threads, first_ms, length_ms, load):
    """Every track with something in it, from `first_ms` on, with the arrows."""
    slices = [e for e in events if e["ph"] == "X"]
    begin = first_ms * 1000 if first_ms is not None else busiest(slices, length_ms * 1000)
    end = begin + length_ms * 1000
    seen = [e for e in slices if e["ts"] < end and e["ts"] + e["dur"] > begin]
    places = sorted({(e["pid"], e["tid"]) for e in seen})
    d = Drawing(begin, end)
    y, tops, last = TOP, {}, None
    for place in places:
        if place[0] != last:
            y += GAP
            d.text(10, y, NAMES.get(processes[place[0]], processes[place[0]]), font_weight="600")
            y += 6
        d.shapes.append(f'<rect class="track" x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{THIN - 3}"/>')
        d.text(10, y + 13, threads[place], "s")
        tops[place], last = y, place[0]
        y += THIN
    bottom, at, step = y, 0.0, tick(end - begin)
    while at * 1000 <= end - begin:
        x = d.x(begin + at * 1000)
        d.line(x, TOP - 4, x, bottom + 4, "grid")
        d.text(x, bottom + 18, f"{at:g}", "s", text_anchor="middle")
        at += step
    d.text(WIDTH - RIGHT, bottom + 34, "ms", "s", text_anchor="end")
    depth = {}
    for e in sorted(seen, key=lambda e: (e["ts"], -e["dur"])):
        place = (e["pid"], e["tid"])
        ends = [until for until in depth.get(place, []) if until > e["ts"] + 5e-4]
        depth[place] = [*ends, e["ts"] + e["dur"]]
        inset = THIN - 9 if e["cat"] == "phase" else min(len(ends), 2) * 3
        number = (e["args"].get("step") or 0) % 2
        kind = {"device": f"{processes[e['pid']]}{number}", "launch": f"talker{number}", "phase": PHASES.get(e["name"], "other")}.get(e["cat"], "other")
        kind = "prompt" if e["name"].startswith("prefill") else kind
        label = e["name"].split(" ")[-1] if e["cat"] in ("device", "launch") else "" if e["cat"] == "phase" else e["name"]
        d.bar(tops[place] + inset, THIN - 3 - inset, e["ts"], e["ts"] + e["dur"], kind, label, f"{e['name']}: {e['dur'] / 1000:.3f} ms")
    arrows = {}
    for e in events:
        if e["ph"] in "stf":
            arrows.setdefault(e["id"], []).append(e)
    drawn = 0
    for points in arrows.values():
        points.sort(key=lambda e: ("stf".index(e["ph"]), e["ts"]))
        if not all(begin <= e["ts"] <= end and (e["pid"], e["tid"]) in tops for e in points):
            continue
        drawn += 1
        path = "L".join(f"{d.x(e['ts']):.1f} {tops[e['pid'], e['tid']] + THIN / 2 - 1:.1f}" for e in points)
        d.shapes.append(f'<path class="line {"ahead" if points[0]["name"] == "token" else "after"}" d="M{path}"/>')
    title = f"{length_ms:g} ms" + (f", {load}" if load else "")
    facts = f"{len(seen)} slices; green: from a step over its token to the launch that it let happen; grey: from a step to its payload and the next stage's feed"
    d.text(10, 26, title, font_size="16", font_weight="600")
    d.text(10, 48, facts, "s")
    d.text(10, 68, f"from {begin / 1000:.1f} ms of the trace; {drawn} arrows; under a step its phases: green backbone, orange code predictor, red sampling", "s")
    return picture(d, bottom + 44, title, facts)


def busiest(slices, length):
    """The beginning of the stretch with the most steps on a device."""
    starts = sorted(e["ts"] for e in slices if e["cat"] == "device")
    if not starts:
        sys.exit("no steps in the trace")
    return max(starts, key=lambda at: sum(at <= other < at + length for other in starts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--from", dest="first", type=int, metavar="STEP", help="the first talker step; by default where most sequences run")
    parser.add_argument("--frames", type=int, default=20, help="how many talker steps (20)")
    parser.add_argument("--tracks", type=float, metavar="MS", help="draw everything of so many milliseconds instead")
    parser.add_argument("--at", type=float, metavar="MS", help="with --tracks: from when on; by default where most happens")
    parser.add_argument("--load", default="", help='for the title, such as "c = 8, 1.7B on an H200"')
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    if args.frames < 1 or (args.tracks is not None and args.tracks <= 0):
        parser.error("--frames: at least 1; --tracks: above 0")
    try:
        events, processes, threads = load_trace(args.trace)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{args.trace}: not a trace: {error}")
    if args.tracks is not None:
        args.output.write_text(tracks(events, processes, threads, args.at, args.tracks, args.load))
        print(args.output)
        return
    stages = read(events, processes)
    if "talker" not in stages:
        sys.exit(f"{args.trace}: no steps of a talker; take it while the server speaks")
    frames = window(stages["talker"], args.first, args.frames)
    args.output.write_text(draw(stages, frames, args.load))
    print(f"{args.output}: talker steps {frames[0]['step']} to {frames[-1]['step']}")


if __name__ == "__main__":
    main()
