#!/usr/bin/env python3
"""Counts sentences that a running server does not end in time, and what it does about them.

    python3 tools/runaway.py --url http://127.0.0.1:8080 --sentences training/heldout.txt --temperatures 0.9,1.5,2.0

Needs nothing but Python. Every sentence is asked for three times with the same seed, SEED plus its number:

    unbounded   as a stream with max_new_tokens, so that only the talker or that limit ends it
    stream      as a stream: the server may end it early
    whole       in one piece: the server may also make it anew

Whether unbounded speech ran away or ended at once is judged here, by its length alone: ran away is longer than 10 s and
0.3 s for each character, some four times what speech takes; ended at once is shorter than 0.01 s for each letter. The
verdict of the server is not asked. Columns:

    away, early     unbounded answers that ran away, that ended at once
    caught          of those, streams that the server ended sooner or gave a reason of its own
    anew            whole answers that are not the stream of the same seed
    sound           of those, answers that neither ran away nor ended at once
    wrong           unbounded answers that did neither, and whose stream or whole answer differs from them all the same
    seconds         of speech in all: unbounded -> stream -> whole
"""

import argparse
import base64
import collections
import concurrent.futures
import json
import time
import urllib.error
import urllib.request
from pathlib import Path

RATE = 24000
# Reasons with which any server ends a stream.
COMMON = ("stop", "length")


def ask(args, text, seed, temperature, **fields):
    """The samples of an answer as 16-bit PCM, and its finish_reason where it is a stream."""
    body = {"input": text, "seed": seed, "temperature": temperature, "response_format": "pcm", **args.fields, **fields}
    headers = {"Content-Type": "application/json"}
    if args.key:
        headers["Authorization"] = f"Bearer {args.key}"
    url = args.url.rstrip("/") + "/v1/audio/speech"
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
    with open_patiently(request, args.timeout) as answer:
        if "stream_format" not in fields:
            return answer.read(), None
        pcm, reason = bytearray(), None
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[len(b"data: ") :])
            if event["type"] == "speech.audio.delta":
                pcm += base64.b64decode(event["audio"])
            elif event["type"] == "speech.audio.done":
                reason = event["finish_reason"]
            elif "error" in event:
                raise SystemExit(f"{text!r}: {event['error']}")
        return bytes(pcm), reason


def open_patiently(request, timeout):
    """The answer to a request, which is sent again for as long as the server is full."""
    while True:
        try:
            return urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                raise SystemExit(f"{error.code} {error.read().decode(errors='replace')}") from None
            time.sleep(float(error.headers.get("Retry-After") or 1))


def seconds(pcm):
    """Length of 16-bit samples."""
    return len(pcm) / 2 / RATE


def verdict(text, pcm):
    """`away`, `early` or `sound`."""
    if seconds(pcm) > 10 + 0.3 * len(text):
        return "away"
    letters = sum(c.isalnum() for c in text)
    return "early" if seconds(pcm) < 0.01 * letters else "sound"


def measure(args, text, seed, temperature):
    """Speaks a sentence three times; the counts that it adds."""
    sse = {"stream": True, "stream_format": "sse"}
    unbounded, _ = ask(args, text, seed, temperature, max_new_tokens=args.frames, **sse)
    stream, reason = ask(args, text, seed, temperature, **sse)
    whole, _ = ask(args, text, seed, temperature)
    count = collections.Counter(
        unbounded_seconds=seconds(unbounded), stream_seconds=seconds(stream), whole_seconds=seconds(whole)
    )
    count[f"ends with {reason}"] += 1
    judged = verdict(text, unbounded)
    count[judged] += 1
    if judged == "sound":
        count["wrong"] += stream != unbounded or whole != unbounded
    else:
        count["caught"] += len(stream) < len(unbounded) or reason not in COMMON
    if whole != stream:
        count["anew"] += 1
        count["anew_sound"] += verdict(text, whole) == "sound"
    return count


def main():
    """Reads the arguments, prints a line for each temperature."""
    about, _, rest = __doc__.partition("\n\n")
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, epilog=rest, formatter_class=formatter)
    parser.add_argument("--url", required=True, help="address of the server")
    parser.add_argument("--sentences", required=True, type=Path, help="file with a sentence a line")
    parser.add_argument("--count", type=int, default=200, help="how many of them (200)")
    parser.add_argument("--temperatures", default="0.9", help="as 0.9,1.5 (0.9)")
    parser.add_argument("--fields", type=json.loads, default={}, help='more of the request, as \'{"top_k": 0}\'')
    parser.add_argument("--seed", type=int, default=1000, help="of the first sentence (1000)")
    parser.add_argument("--frames", type=int, default=1500, help="at which an unbounded answer ends (1500)")
    parser.add_argument("--parallel", type=int, default=2, help="sentences at once (2)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for an answer (600)")
    parser.add_argument("--key", help="API key, where the server wants one")
    args = parser.parse_args()
    texts = [line.strip() for line in args.sentences.read_text().splitlines() if line.strip()][: args.count]
    print("temperature sentences  away early caught  anew sound wrong  seconds", flush=True)
    for temperature in map(float, args.temperatures.split(",")):
        total = collections.Counter()
        with concurrent.futures.ThreadPoolExecutor(args.parallel) as pool:
            asked = [pool.submit(measure, args, text, args.seed + n, temperature) for n, text in enumerate(texts)]
            for count in asked:
                total.update(count.result())
        reasons = ", ".join(f"{name} {int(n)}" for name, n in sorted(total.items()) if name.startswith("ends with "))
        columns = [total[name] for name in ("away", "early", "caught", "anew", "anew_sound", "wrong")]
        spoken = " -> ".join(f"{total[name]:.0f}" for name in ("unbounded_seconds", "stream_seconds", "whole_seconds"))
        numbers = "{:>5} {:>5} {:>6} {:>5} {:>5} {:>5}".format(*columns)
        print(f"{temperature:<11} {len(texts):>9} {numbers}  {spoken}  ({reasons})", flush=True)


if __name__ == "__main__":
    main()
