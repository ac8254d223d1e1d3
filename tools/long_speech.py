#!/usr/bin/env python3
"""Memory of a server over one long request.

    python3 tools/long_speech.py --binary target/release/omni-actors --minutes 60

Has a server of its own speak one text in one request until so much speech has come, and prints the memory of the server
(resident, now and at most) after 0, 1, 2, 5, 10, 20, ... minutes of speech. --config names another config to serve.
"""

import argparse
import http.client
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path

TEXT = (
    "The morning train left the station at seven, and nobody on the platform noticed that one carriage was empty. "
    "It was a quiet day by the river. "
)
MARKS = [0, 1, 2, 5, *range(10, 1000, 10)]


def memory(pid):
    """Resident memory of a process now and at most, in MB."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return tuple(int(fields[name].split()[0]) / 1000 for name in ("VmRSS", "VmHWM"))


def serve(options, folder):
    config = Path(folder) / "long.toml"
    own = Path(options.config).read_text() if options.config else ""
    config.write_text(own)
    limits = {"limits.request_timeout": "23h", "limits.max_input_chars": 1_000_000, "limits.max_audio": "3h"}
    command = [options.binary, "run", str(config), "--listen", "127.0.0.1:0"]
    command += [word for key, value in limits.items() for word in ("--set", f"{key}={value}")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in server.stdout:
        if found := re.search(r"http://([0-9.:]+)", line):
            return server, found.group(1)
    raise SystemExit("the server did not start")


def wait_until_ready(address):
    while True:
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", "/ready")
        if connection.getresponse().status == 200:
            return
        time.sleep(0.2)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--binary", default="target/release/omni-actors")
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--config")
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server, address = serve(options, folder)
        try:
            wait_until_ready(address)
            # Eight seconds of speech at least for each copy.
            body = {"input": TEXT * int(options.minutes * 60 / 8 + 4), "seed": 1, "response_format": "pcm"}
            body |= {"stream": True, "stream_format": "audio"}
            connection = http.client.HTTPConnection(address, timeout=3600)
            connection.request("POST", "/v1/audio/speech", json.dumps(body), {"content-type": "application/json"})
            response, began = connection.getresponse(), time.monotonic()
            if response.status != 200:
                raise SystemExit(response.read().decode())
            heard, marks = 0, [mark for mark in MARKS if mark < options.minutes] + [options.minutes]
            while piece := response.read1(65536):
                heard += len(piece)
                while marks and heard >= marks[0] * 60 * 48000:
                    now, most = memory(server.pid)
                    took = time.monotonic() - began
                    print(f"{marks.pop(0):4.0f} min of speech after {took:.0f} s: {now:.1f} MB, {most:.1f} at most", flush=True)
                if not marks:
                    break
            if marks:
                raise SystemExit(f"the text ended after {heard / 48000:.0f} s of speech")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
