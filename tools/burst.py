#!/usr/bin/env python3
"""How long speech takes to begin for requests that come at once.

    omni-actors run configs/random-tts-1.7b.toml --set limits.max_requests=320 --set server.max_connections=1024
    python3 tools/burst.py --requests 256

One thread opens all connections, and then sends all requests, whose bytes it has made before. `bench` makes each of its
requests when its turn comes, so what it measures of a burst is its own work, too. To see where the requests waited,
record them meanwhile: `omni-actors trace --url http://127.0.0.1:8080 --seconds 3 -o burst.json`.
Ends with 1 if a request was refused.
"""

import argparse
import json
import selectors
import socket
import sys
import time
import urllib.parse

TEXT = (
    "We walked along the river until it was dark and then the old man told us a story about the sea and the ships that "
    "had never come home again."
)


def request(host, args, seed):
    body = {"input": TEXT, "stream": True, "stream_format": "audio", "response_format": "pcm", "seed": seed}
    body |= {"max_new_tokens": args.frames, "ignore_eos": True}
    if args.voice:
        body["voice"] = args.voice
    data = json.dumps(body).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


class Answer:
    """What came of one request, and when."""

    def __init__(self):
        self.head, self.first = b"", None

    def takes(self, data, now):
        if self.first is not None:
            return
        self.head += data
        head, blank, sound = self.head.partition(b"\r\n\r\n")
        if blank and sound:
            self.first = now

    def is_good(self):
        return self.head.startswith(b"HTTP/1.1 200 ") and self.first is not None


def burst(args):
    """Sends all at once; returns the seconds that took, and the answers."""
    url = urllib.parse.urlsplit(args.url)
    connections = [socket.create_connection((url.hostname, url.port or 80)) for _ in range(args.requests)]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    requests = [request(url.netloc, args, seed) for seed in range(args.requests)]
    time.sleep(0.5)  # the server has taken the connections
    began = time.perf_counter()
    for connection, data in zip(connections, requests):
        connection.sendall(data)
    sent = time.perf_counter() - began
    answers, waiting = [], selectors.DefaultSelector()
    for connection in connections:
        connection.setblocking(False)
        answers.append(Answer())
        waiting.register(connection, selectors.EVENT_READ, answers[-1])
    while waiting.get_map():
        for key, _ in waiting.select():
            data = key.fileobj.recv(1 << 16)
            if data:
                key.data.takes(data, time.perf_counter() - began)
            else:
                waiting.unregister(key.fileobj)
                key.fileobj.close()
    return sent, answers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--bursts", type=int, default=3)
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--voice")
    args = parser.parse_args()
    bad = 0
    for _ in range(args.bursts):
        sent, answers = burst(args)
        good = sorted(answer.first for answer in answers if answer.is_good())
        for answer in answers:
            if not answer.is_good():
                bad += 1
                if bad == 1:
                    print(answer.head[:400].decode(errors="replace"), file=sys.stderr)
        at = {share: good[min(len(good) - 1, int(share * len(good)))] * 1e3 if good else float("nan") for share in (0.5, 0.95)}
        print(
            f"{len(answers)} sent in {sent * 1e3:.1f} ms: TTFA p50 {at[0.5]:.1f} ms, p95 {at[0.95]:.1f} ms, "
            f"{len(answers) - len(good)} refused"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
