#!/usr/bin/env python3
"""Runs the whole test suite many times, several runs side by side, and names every test that failed.

    scripts/soak.py --runs 50 --lanes 4            # builds the tests first, as `cargo test` does
    scripts/soak.py --list suite.json              # only builds, and writes down which executables there are
    scripts/soak.py --suite suite.json --runs 50   # runs those, on a machine without cargo

A lane runs one executable after the other, on so many cores (--cores) of its own; with more lanes than there are cores
for, they share them, which is the load. Interrupted (Ctrl-C), it begins nothing more, waits for what runs, and reports.
Ends with 1 if a test failed, with what it printed in FOLDER (--logs).
"""

import argparse
import collections
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FAILED = re.compile(r"^    ([\w:]+)$", re.MULTILINE)
PASSED = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed", re.MULTILINE)


def suite(cargo_arguments):
    """The test executables that cargo builds, and the folders that they run in, below the root."""
    command = ["cargo", "test", "--locked", "--no-run", "--message-format=json", *cargo_arguments]
    told = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    found = []
    for line in told.splitlines():
        artifact = json.loads(line)
        if artifact.get("reason") == "compiler-artifact" and artifact["profile"]["test"] and artifact["executable"]:
            folder = pathlib.Path(artifact["manifest_path"]).parent
            found.append({
                "name": f"{folder.relative_to(ROOT)}:{artifact['target']['name']}",
                "executable": os.path.relpath(artifact["executable"], ROOT),
                "folder": str(folder.relative_to(ROOT)),
            })
    return found


class Soak:
    """What the lanes share: what is to begin next, and what came of those that ran."""

    def __init__(self, args, tests):
        self.args, self.tests, self.lock = args, tests, threading.Lock()
        self.ends = time.monotonic() + args.seconds
        # Every executable of a run begins before one of the next run does.
        self.next = iter([(run, test) for run in range(1, args.runs + 1) for test in tests])
        self.passed = 0
        self.failures = collections.Counter()
        self.seconds = {test["name"]: [] for test in tests}
        args.logs.mkdir(parents=True, exist_ok=True)

    def begin(self):
        with self.lock:
            return next(self.next, None) if time.monotonic() < self.ends else None

    def end(self):
        """Nothing begins any more; what runs comes to its end."""
        self.ends = min(self.ends, time.monotonic())

    def lane(self, number):
        first_core, own = self.args.first_core, os.cpu_count() - self.args.first_core
        cores = {first_core + (number * self.args.cores + core) % own for core in range(self.args.cores)}
        while begun := self.begin():
            run, test = begun
            self.test(test, cores, run)

    def test(self, test, cores, run):
        """Runs an executable; counts that it came to its end, and what failed."""
        left = min(self.args.limit, self.ends - time.monotonic())
        if left <= 0:
            return
        began = time.monotonic()
        folder = ROOT / test["folder"]
        process = subprocess.Popen(
            [str(ROOT / test["executable"]), "-q"],
            cwd=folder,
            env={**os.environ, "CARGO_MANIFEST_DIR": str(folder), "RUST_BACKTRACE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        try:
            said, hung = process.communicate(timeout=left)[0], False
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, hung = process.communicate()[0], left >= self.args.limit
            if not hung:
                return  # the time of the soak is over
        failed = [*(FAILED.findall(said.rpartition("failures:")[2]) if process.returncode == 101 else ())]
        if hung or (process.returncode != 0 and not failed):
            failed = ["hung" if hung else f"ended with {process.returncode}"]
        with self.lock:
            self.seconds[test["name"]].append(time.monotonic() - began)
            self.passed += sum(int(passed) for passed, _ in PASSED.findall(said))
            for what in failed:
                self.failures[f"{test['name']} {what}"] += 1
        if failed:
            (self.args.logs / f"{run}-{re.sub('[/:]', '_', test['name'])}.log").write_text(said)

    def whole(self):
        """How many times the whole suite ran to its end."""
        return min(len(times) for times in self.seconds.values())

    def report(self):
        print(f"the suite ran {self.whole()} times to its end; {self.passed} tests passed")
        for name, times in sorted(self.seconds.items(), key=lambda item: -sum(item[1]))[:8]:
            print(f"  {statistics.mean(times or [0]):6.1f} s, {len(times)} times: {name}")
        for what, count in self.failures.most_common():
            print(f"FAILED {count}: {what}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--cores", type=int, default=2, help="of a lane")
    parser.add_argument("--first-core", type=int, default=0, help="cores before it are left alone")
    parser.add_argument("--seconds", type=float, default=86400, help="after which nothing begins any more")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which an executable hangs")
    parser.add_argument("--logs", type=pathlib.Path, default=ROOT / "target/soak")
    parser.add_argument("--suite", type=pathlib.Path, help="a file that --list has written")
    parser.add_argument("--list", type=pathlib.Path, help="writes which executables there are, and runs none")
    parser.add_argument("--skip", action="append", default=[], help="name of an executable that is left out, `.:house`")
    parser.add_argument("cargo", nargs="*", help="arguments for `cargo test`, behind --")
    args = parser.parse_args()
    tests = json.loads(args.suite.read_text()) if args.suite else suite(args.cargo)
    tests = [test for test in tests if test["name"] not in args.skip]
    if args.list:
        args.list.write_text(json.dumps(tests, indent=1))
        return 0
    soak = Soak(args, tests)
    lanes = [threading.Thread(target=soak.lane, args=(number,)) for number in range(args.lanes)]
    signal.signal(signal.SIGINT, lambda *_: soak.end())
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    soak.report()
    return 1 if soak.failures or soak.whole() == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
