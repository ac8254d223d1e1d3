#!/usr/bin/env python3
"""Holds one scripted conversation with two interruptions against a server, and draws who spoke when, what was made, what
was heard and what was cut off. The answers that are interrupted are long: the user speaks while they are still made, and
the server stops making them.

    omni-actors run --checkpoint DIR --listen 127.0.0.1:8080
    python3 tools/conversation.py --base-url http://127.0.0.1:8080 --output docs/images/conversation.svg

Needs Python 3.11 and the package websockets; the server's model has to hear. The user is a vowel in syllables, which the
detector takes for speech, and comes at the pace of a microphone. A player hears the answers as they come, stops when the
server says that the user speaks, and tells the server how much was heard.
"""

import argparse
import asyncio
import base64
import json
import math
import struct
import time
from pathlib import Path
from xml.sax.saxutils import escape

from websockets.asyncio.client import connect

RATE = 24_000
FRAME_S = 0.02
SAMPLE_BYTES = 2
# The turns of the user: for how long they speak, and how long after the first sound of the answer before they begin.
TURNS = ((3.0, 0.0), (2.2, 1.4), (2.6, 0.9))
PATIENCE_S = 120


def syllables(seconds):
    """A buzz with the formants of a vowel, four syllables a second: 16-bit samples."""
    formants = ((700, 150, 1.0), (1200, 180, 0.6), (2600, 250, 0.3))
    samples = bytearray()
    for at in range(int(seconds * RATE)):
        t = at / RATE
        pitch = 120 + 20 * math.sin(9 * t)
        voice = 0.0
        for k in range(1, 30):
            level = sum(gain * math.exp(-(((pitch * k - hertz) / width) ** 2)) for hertz, width, gain in formants)
            voice += level * math.sin(math.tau * pitch * k * t)
        syllable = math.sqrt(0.5 - 0.5 * math.cos(math.tau * 4 * t))
        samples += struct.pack("<h", int(max(-32_000, min(32_000, voice * syllable * 6_000))))
    return bytes(samples)


class Answer:
    """Of one response: when its sound came, and what was heard of it."""

    def __init__(self):
        self.item = None
        self.first = self.last = self.ended = None
        self.made = 0.0
        self.heard = 0.0
        self.cut = None
        self.cancelled = False
        self.cached = 0

    def playing(self, now):
        """Seconds that a player has played by now."""
        if self.first is None or self.cut is not None:
            return self.heard
        return min(now - self.first, self.made)


class Conversation:
    def __init__(self, socket):
        self.socket = socket
        self.began = time.monotonic()
        self.said, self.detected, self.answers = [], [], []
        self.changed = asyncio.Event()

    def now(self):
        return time.monotonic() - self.began

    async def until(self, number, came):
        """Waits until so many answers were begun, and the last one has come so far."""
        while len(self.answers) < number or not came(self.answers[-1]):
            self.changed.clear()
            await self.changed.wait()

    async def send(self, kind, **fields):
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def microphone(self, speech):
        """What is said now, and silence while nothing is, at the pace of sound."""
        size, due = int(RATE * FRAME_S) * SAMPLE_BYTES, time.monotonic()
        while True:
            frame = bytes(speech[:size]).ljust(size, b"\0")
            del speech[:size]
            await self.send("input_audio_buffer.append", audio=base64.b64encode(frame).decode())
            due += FRAME_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def listen(self):
        async for text in self.socket:
            event, now = json.loads(text), self.now()
            kind, answer = event["type"], self.answers[-1] if self.answers else None
            if kind == "error":
                raise SystemExit(f"the server says: {event['error']['message']}")
            if kind == "input_audio_buffer.speech_started":
                self.detected.append([now, None])
                if answer and answer.first is not None and answer.playing(now) < answer.made:
                    answer.heard = answer.playing(now)
                    answer.cut = now
                    heard = {"content_index": 0, "audio_end_ms": int(answer.heard * 1000)}
                    await self.send("conversation.item.truncate", item_id=answer.item, **heard)
            if kind == "input_audio_buffer.speech_stopped":
                self.detected[-1][1] = now
            if kind == "response.created":
                self.answers.append(Answer())
            if kind == "response.output_audio.delta":
                answer.item = event["item_id"]
                answer.first = now if answer.first is None else answer.first
                answer.last = now
                answer.made += len(base64.b64decode(event["delta"])) / SAMPLE_BYTES / RATE
            if kind == "response.done":
                answer.ended = now
                answer.cancelled = event["response"]["status"] == "cancelled"
                answer.cached = event["response"]["usage"]["input_token_details"]["cached_tokens"]
            self.changed.set()


async def hold(url, tokens, last_tokens):
    async with connect(f"{url}/v1/realtime?seed=11", max_size=None) as socket:
        talk, speech = Conversation(socket), bytearray()
        listening = asyncio.create_task(talk.listen())
        spoken = [syllables(seconds) for seconds, _ in TURNS]
        talk.began = time.monotonic()
        microphone = asyncio.create_task(talk.microphone(speech))

        async def play():
            for number, ((seconds, into), sound) in enumerate(zip(TURNS, spoken), 1):
                if into:
                    await talk.until(number - 1, lambda answer: answer.first is not None)
                    await asyncio.sleep(into)
                most = tokens if number < len(TURNS) else last_tokens
                await talk.send("session.update", session={"type": "realtime", "max_output_tokens": most})
                speech.extend(sound)
                talk.said.append((talk.now(), talk.now() + seconds))
                await asyncio.sleep(seconds)
            await talk.until(len(TURNS), lambda answer: answer.ended is not None)
            last = talk.answers[-1]
            await asyncio.sleep(max(0.0, last.first + last.made - talk.now()))
            last.heard = last.made

        playing = asyncio.create_task(play())
        tasks = {listening, microphone, playing}
        finished, _ = await asyncio.wait(tasks, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks - finished:
            task.cancel()
        if playing not in finished:
            # What a task failed with; a conversation that takes too long has none.
            for task in finished:
                task.result()
            raise SystemExit(f"the conversation was not over after {PATIENCE_S} s")
        playing.result()
        return talk


WIDTH, LEFT, RIGHT, TOP, LANE, GAP = 1100, 128, 20, 66, 30, 14
LANES = ("user speaks", "found as a turn", "answer is made", "answer is heard")
STYLE = """.bg{fill:#fcfcfd}.t{fill:#1d2939;font-weight:600}.s{fill:#667085;font-size:12px}.grid{stroke:#e4e7ec}
.lane{fill:#f2f4f7}.user{fill:#2f6db5}.turn{fill:#9cc2ec}.made{fill:#4bad6b}.heard{fill:#2f8f4e}.cut{stroke:#d92d20;stroke-width:2}
.r{fill:#d92d20;font-size:12px}
@media (prefers-color-scheme:dark){.bg{fill:#0d1117}.t{fill:#e6edf3}.s{fill:#9aa4b2}.grid{stroke:#2a313c}.lane{fill:#161b22}
.r{fill:#ff7b72}.cut{stroke:#ff7b72}}"""


def svg(talk, title):
    longest = max(answer.first + answer.heard for answer in talk.answers) + 0.3
    height = TOP + len(LANES) * (LANE + GAP) + 34
    x = lambda at: LEFT + at / longest * (WIDTH - LEFT - RIGHT)
    top = lambda lane: TOP + lane * (LANE + GAP)
    bar = lambda name, lane, start, end: (
        f'<rect class="{name}" x="{x(start):.1f}" y="{top(lane)}" width="{max(1.5, x(end) - x(start)):.1f}" '
        f'height="{LANE}" rx="3"/>')
    label = lambda name, at, y, text: f'<text class="{name}" x="{x(at):.1f}" y="{y:.1f}">{escape(text)}</text>'
    cuts = [answer for answer in talk.answers if answer.cut is not None]
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="ui-sans-serif, '
             'system-ui, sans-serif" font-size="14" role="img" aria-labelledby="t">',
             f'<title id="t">A conversation with {len(cuts)} interruptions: {escape(title)}</title>',
             f"<style>{STYLE}</style>", f'<rect class="bg" width="{WIDTH}" height="{height}"/>',
             f'<text class="t" x="16" y="26">A conversation with {len(cuts)} interruptions</text>',
             f'<text class="s" x="16" y="46">{escape(title)}</text>']
    for lane, name in enumerate(LANES):
        parts += [f'<rect class="lane" x="{LEFT}" y="{top(lane)}" width="{WIDTH - LEFT - RIGHT}" height="{LANE}"/>',
                  f'<text class="s" x="{LEFT - 10}" y="{top(lane) + LANE / 2 + 4}" text-anchor="end">{name}</text>']
    bottom = top(len(LANES) - 1) + LANE
    for second in range(int(longest) + 1):
        parts += [f'<path class="grid" d="M{x(second):.1f} {TOP}V{bottom}"/>',
                  f'<text class="s" x="{x(second):.1f}" y="{bottom + 20}" text-anchor="middle">{second} s</text>']
    parts += [bar("user", 0, *said) for said in talk.said]
    parts += [bar("turn", 1, start, end) for start, end in talk.detected if end]
    for (_, ended), answer in zip((turn for turn in talk.detected if turn[1]), talk.answers):
        parts += [bar("made", 2, answer.first, answer.last), bar("heard", 3, answer.first, answer.first + answer.heard),
                  label("s", answer.first, top(2) - 3, f"after {(answer.first - ended) * 1000:.0f} ms; "
                        f"{answer.made:.1f} s made")]
    for answer in cuts:
        parts += [f'<path class="cut" d="M{x(answer.cut):.1f} {TOP - 6}V{bottom}"/>',
                  label("r", answer.cut + 0.08, top(3) + LANE / 2 + 4,
                        f"{answer.heard:.1f} s heard, {answer.made - answer.heard:.1f} s not")]
    return "\n".join(parts) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8080")
    parser.add_argument("--tokens", type=int, default=900, help="limit on an answer that is interrupted, and its frames")
    parser.add_argument("--last-tokens", type=int, default=60, help="the same of the last one")
    parser.add_argument("--title", default="", help="what the picture says of model and machine")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    talk = asyncio.run(hold(args.base_url.rstrip("/").replace("http", "ws", 1), args.tokens, args.last_tokens))
    args.output.write_text(svg(talk, args.title))
    for (_, ended), answer in zip((turn for turn in talk.detected if turn[1]), talk.answers):
        behind = (answer.first - ended) * 1000
        print(f"first sound {behind:.0f} ms behind the turn, {answer.made:.1f} s made, {answer.heard:.1f} s heard, "
              f"{'cut off' if answer.cut else 'heard to its end'}, "
              f"{'stopped while it was made' if answer.cancelled else 'made to its end'}, "
              f"{answer.cached} tokens of its prompt kept")


if __name__ == "__main__":
    main()
