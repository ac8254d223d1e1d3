"""What the client tests share."""

import argparse
import array
import os
import pathlib
import shutil
import subprocess
import sys
import time


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--base-url", default="http://127.0.0.1:8080", help="where the server is, without /v1")
    return parser


def pcm16(data):
    """Little-endian 16-bit samples."""
    samples = array.array("h")
    samples.frombytes(data)
    if sys.byteorder == "big":
        samples.byteswap()
    return samples


def check_speech(what, samples, rate, at_least_s=0.3):
    """Speech is neither silent nor too short, nor clipped into noise."""
    seconds = len(samples) / rate
    peak = max(map(abs, samples), default=0) / 32768
    rms = (sum(x * x for x in samples) / max(len(samples), 1)) ** 0.5 / 32768
    assert seconds >= at_least_s, f"{what}: only {seconds:.2f} s of audio"
    assert peak > 0.02, f"{what}: silent, peak {peak:.4f}"
    assert 0.002 < rms < 0.5, f"{what}: not speech, rms {rms:.4f}"
    return f"{seconds:.2f} s, peak {peak:.2f}"


def javascript(name, node_modules, base, environment=None):
    """What the script `name` of this folder prints, run by node with the packages of `node_modules`."""
    assert node_modules, "NODE_MODULES or --node-modules must tell where the packages for JavaScript are"
    node = shutil.which("node") or shutil.which("nodejs")
    assert node, "no node"
    here = pathlib.Path(__file__).resolve().parent / name
    # Node looks for packages beside a script, so the script goes to them.
    script = pathlib.Path(node_modules).resolve().parent / name
    shutil.copy(here, script)
    environment = os.environ | (environment or {})
    done = subprocess.run([node, script, base], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, f"{done.stdout[-500:]} {done.stderr[-2000:]}"
    return "; ".join(done.stdout.split("\n")[:-1])


def run(tests):
    """Runs the functions in turn; the exit status is 1 if one failed."""
    failed = 0
    for test in tests:
        begun = time.monotonic()
        try:
            note = test() or ""
            print(f"ok    {test.__name__} ({time.monotonic() - begun:.1f} s) {note}", flush=True)
        except Exception as error:  # every failure is one line; the next test still runs
            failed += 1
            print(f"FAIL  {test.__name__}: {type(error).__name__}: {error}", flush=True)
    sys.exit(1 if failed else 0)
