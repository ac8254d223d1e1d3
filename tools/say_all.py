#!/usr/bin/env python3
"""Speaks every sentence of a list into 01.wav, 02.wav, ..., with the command or through a running server.

    python3 tools/say_all.py --sentences tests/data/unseen_sentences.txt --out DIR --binary target/release/omni-actors [--greedy]
    python3 tools/say_all.py --sentences tests/data/unseen_sentences.txt --out DIR --url http://127.0.0.1:8000 [--greedy]

Needs nothing but Python. Sentence N is spoken with seed SEED + N, so a run can be repeated exactly. With --url, the last
line tells how long the speech is and how long it took; with --binary that time includes a process start for each sentence.
"""

import argparse
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
import wave
from pathlib import Path

import sentences


def say_with_binary(args, text, seed, target):
    """One run of `omni-actors say`."""
    command = [args.binary, "say", text, "-o", str(target), "--seed", str(seed)]
    if args.voice:
        command += ["--voice", args.voice]
    if args.greedy:
        command += ["--temperature", "0"]
    result = subprocess.run(command + args.extra, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{target.name}: {' '.join(command)} ended with {result.returncode}\n{result.stderr}")


def say_with_server(args, text, seed, target):
    """One POST /v1/audio/speech."""
    body = {"input": text, "response_format": "wav", "seed": seed}
    if args.model:
        body["model"] = args.model
    if args.voice:
        body["voice"] = args.voice
    if args.greedy:
        body["temperature"] = 0
    request = urllib.request.Request(
        args.url.rstrip("/") + "/v1/audio/speech",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=args.timeout) as response:
            target.write_bytes(response.read())
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{target.name}: {error.code} {error.read().decode(errors='replace')}") from None
    except OSError as error:
        raise SystemExit(f"{target.name}: {args.url}: {error}") from None


def seconds_of(path):
    """Length of a wav file."""
    with wave.open(str(path), "rb") as file:
        return file.getnframes() / file.getframerate()


def main():
    """Speaks the list in order, one sentence at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", required=True, help="one a line; '#' starts a comment")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--binary", metavar="PATH", help="the omni-actors program")
    how.add_argument("--url", help="of a running server, without a path")
    parser.add_argument("--voice", help="the default voice unless given")
    parser.add_argument("--model", help="with --url: the request's model field")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--greedy", action="store_true", help="temperature 0 instead of the checkpoint's sampling")
    parser.add_argument("--limit", type=int, help="only the first so many sentences")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one request")
    parser.add_argument("extra", nargs="*", help="after --: more arguments for `omni-actors say`")
    args = parser.parse_args()

    texts = sentences.read(args.sentences)[: args.limit]
    args.out.mkdir(parents=True, exist_ok=True)
    say = say_with_binary if args.binary else say_with_server
    speech, began = 0.0, time.monotonic()
    for number, text in enumerate(texts, 1):
        target = args.out / sentences.wav_name(number)
        say(args, text, args.seed + number, target)
        speech += seconds_of(target)
        if sys.stderr.isatty():
            print(f"\r{number}/{len(texts)}", end="", file=sys.stderr, flush=True)
    took = time.monotonic() - began
    print(f"{len(texts)} sentences, {speech:.1f} s of speech in {took:.1f} s ({took / speech:.2f} x real time)")


if __name__ == "__main__":
    main()
