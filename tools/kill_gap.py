#!/usr/bin/env python3
"""The gap that a listener hears when the process of a talker is killed, with one replica and with two.

    python3 tools/kill_gap.py --binary target/release/omni-actors --kills 11

Each run streams the same text, kills the process that makes it after the third chunk, and compares the samples with
those of an undisturbed stream. The longest time between two chunks is printed, beside that of undisturbed streams.
"""

import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import time
import urllib.request

TEXT = (
    "We walked along the river until it was dark, and then the old man told us a long story about the sea, the ships, "
    "and the people who had lived there before."
)


def serve(binary, replicas):
    options = {
        "stages.talker.placement": "process",
        "stages.talker.replicas": replicas,
        "supervision.max_restarts": 100,
    }
    options = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
    command = [binary, "run", "--listen", "127.0.0.1:0", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in server.stdout:
        if found := re.search(r"http://([0-9.:]+)", line):
            return server, found.group(1)
    raise SystemExit("the server did not start")


def health(address):
    return json.load(urllib.request.urlopen(f"http://{address}/health"))


def wait_until_whole(address):
    while not all(stage["state"] == "running" for stage in health(address)["stages"]):
        time.sleep(0.05)


def kill_the_busy_one(address):
    talkers = [stage for stage in health(address)["stages"] if stage["name"] == "talker"]
    os.kill(max(talkers, key=lambda stage: stage["sequences"])["pid"], signal.SIGKILL)


def stream(address, kill):
    """The samples, and the longest time between two chunks in ms."""
    connection = http.client.HTTPConnection(address)
    body = {"input": TEXT, "stream": True, "stream_format": "audio", "response_format": "pcm", "seed": 7}
    connection.request("POST", "/v1/audio/speech", json.dumps(body), {"content-type": "application/json"})
    response, samples, times = connection.getresponse(), b"", []
    while piece := response.read1(65536):
        samples += piece
        times.append(time.monotonic())
        if kill and len(times) == 3:
            kill_the_busy_one(address)
    return samples, 1000 * max(after - before for before, after in zip(times, times[1:]))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--binary", default="target/release/omni-actors")
    options.add_argument("--kills", type=int, default=11)
    options = options.parse_args()
    for replicas in (1, 2):
        server, address = serve(options.binary, replicas)
        try:
            gaps = {False: [], True: []}
            truth = None
            for kill in [False, True] * options.kills:
                wait_until_whole(address)
                samples, gap = stream(address, kill)
                truth = truth or samples
                assert samples == truth, "other samples"
                gaps[kill].append(gap)
        finally:
            server.terminate()
            server.wait()
        for kill, name in ((False, "undisturbed"), (True, "killed")):
            median, worst = statistics.median(gaps[kill]), max(gaps[kill])
            print(f"{replicas} replicas, {name}: longest gap {median:.0f} ms (median), {worst:.0f} ms (worst)")


if __name__ == "__main__":
    main()
