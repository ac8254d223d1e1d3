#!/usr/bin/env python3
"""How long a model that hears and sees takes from the last byte of a request to the first byte of sound.

    omni-actors run configs/random-omni-30b.toml
    python3 tools/media_latency.py --url http://127.0.0.1:8080 --at-once 1,16 --beside 4

Asks with text alone, 8 s of sound, a picture of 640 x 480 and 16 frames of 854 x 480, each request with media of its own,
so that no cache knows them (needs `pip install pillow`). With --beside, so many other answers are spoken meanwhile; the table
then says how long a second of their sound takes, and how many pieces of it came later than a listener needs them.
"""

import argparse
import base64
import concurrent.futures
import http.client
import io
import json
import math
import random
import statistics
import struct
import threading
import time
import urllib.parse

import PIL.Image

KINDS = ("text", "sound", "picture", "video")


def sound(rng, seconds=8, rate=16000):
    tones = [(rng.uniform(100, 900), rng.uniform(1, 6)) for _ in range(3)]
    samples = (
        sum(math.sin(2 * math.pi * tone * i / rate) * math.sin(beat * i / rate) for tone, beat in tones)
        for i in range(seconds * rate)
    )
    data = b"".join(struct.pack("<h", int(8000 * sample)) for sample in samples)
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", len(data))
    return head + data


def picture(rng, width, height):
    waves = [[round(127 + 120 * math.sin(rng.uniform(3, 3.02) * i / side)) for i in range(side)] for side in (width, height)]
    image = PIL.Image.merge("RGB", [plane(rng, waves, width, height) for _ in range(3)])
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()


def plane(rng, waves, width, height):
    shift = rng.randrange(256)
    return PIL.Image.frombytes("L", (width, height), bytes((a + b + shift) % 256 for b in waves[1] for a in waves[0]))


def part(kind, seed):
    """The content of a request."""
    rng = random.Random(f"{kind} {seed}")
    address = lambda: "data:image/jpeg;base64," + base64.b64encode(picture(rng, *size)).decode()
    text = {"type": "text", "text": "What is this?"}
    if kind == "sound":
        return [{"type": "input_audio", "input_audio": {"data": base64.b64encode(sound(rng)).decode(), "format": "wav"}}, text]
    if kind == "picture":
        size = (640, 480)
        return [{"type": "image_url", "image_url": {"url": address()}}, text]
    if kind == "video":
        size = (854, 480)
        return [{"type": "video", "video": [address() for _ in range(16)], "fps": 2}, text]
    return [text]


def body(kind, seed, tokens, frames):
    request = {
        "messages": [{"role": "user", "content": part(kind, seed)}],
        "stream": True,
        "modalities": ["text", "audio"],
        "audio": {"format": "pcm16", "max_new_tokens": frames},
        "max_tokens": tokens,
        "ignore_eos": True,
        "seed": seed,
    }
    return json.dumps(request).encode()


def ask(url, data, until=None):
    """The pieces of sound: when each came, in seconds since the last byte of the request, and its own seconds."""
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=120)
    connection.request("POST", "/v1/chat/completions", data, {"content-type": "application/json"})
    began, pieces = time.perf_counter(), []
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status} {answer.read(400).decode()}")
    for line in answer:
        if b'"audio"' in line and b'"data"' in line:
            now = time.perf_counter() - began
            sound = json.loads(line[5:])["choices"][0]["delta"]["audio"]["data"]
            pieces.append((now, len(sound) * 3 / 4 / 2 / 24000))
        if until is not None and until.is_set():
            break
    connection.close()
    if not pieces and until is None:
        raise RuntimeError("an answer without sound")
    return pieces


def percent(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


class Beside:
    """Answers that are spoken all the time."""

    def __init__(self, url, count):
        self.over, self.paces, self.late, self.lock = threading.Event(), [], 0, threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(url, i)) for i in range(count)]
        [thread.start() for thread in self.threads]

    def run(self, url, number):
        seed = number * 1000
        while not self.over.is_set():
            seed += 1
            pieces = ask(url, body("text", seed, 60, 200), self.over)
            heard = 0.0
            for (before, said), (now, seconds) in zip(pieces, pieces[1:]):
                heard += said
                with self.lock:
                    self.paces.append((now - before) / seconds)
                    self.late += now - pieces[0][0] > heard

    def taken(self):
        """What has come since it was asked last: seconds of time for a second of sound, and pieces that came late."""
        with self.lock:
            taken, self.paces, self.late = (self.paces, self.late), [], 0
        return taken

    def end(self):
        self.over.set()
        [thread.join() for thread in self.threads]


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--url", default="http://127.0.0.1:8080")
    parse.add_argument("--kinds", default=",".join(KINDS))
    parse.add_argument("--at-once", default="1,16")
    parse.add_argument("--requests", type=int, default=16, help="of each kind and number at once")
    parse.add_argument("--beside", type=int, default=0, help="answers that are spoken meanwhile")
    options = parse.parse_args()
    url, counts = urllib.parse.urlparse(options.url), [int(count) for count in options.at_once.split(",")]
    beside = Beside(url, options.beside) if options.beside else None
    if beside:
        time.sleep(3)
        beside.taken()
        time.sleep(10)
        print("nothing else          " + pace(*beside.taken()), flush=True)
    for kind in options.kinds.split(","):
        bodies = [body(kind, 7 + i, 8, 4) for i in range(options.requests * len(counts) + 1)]
        ask(url, bodies.pop())
        for count in counts:
            todo, bodies = bodies[: options.requests], bodies[options.requests :]
            if beside:
                time.sleep(1)
                beside.taken()
            with concurrent.futures.ThreadPoolExecutor(count) as pool:
                firsts = [pieces[0][0] for pieces in pool.map(lambda data: ask(url, data), todo)]
            middle, worst = statistics.median(firsts), percent(firsts, 0.95)
            line = f"{kind:8} {count:3} at once: first sound p50 {1000 * middle:7.1f} ms, p95 {1000 * worst:7.1f} ms"
            print(line + ("; " + pace(*beside.taken()) if beside else ""), flush=True)
    if beside:
        beside.end()


def pace(paces, late):
    if not paces:
        return "beside it nothing came"
    return (
        f"beside it {len(paces)} pieces, {1000 * statistics.mean(paces):.0f} ms for a second of sound, "
        f"p99 {1000 * percent(paces, 0.99):.0f} ms, {late} late"
    )


if __name__ == "__main__":
    main()
