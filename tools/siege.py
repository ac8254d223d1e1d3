#!/usr/bin/env python3
"""Besieges one server for an hour: all attacks of siege_attacks.py in a random order and mixture, ordinary clients beside.

    python3 tools/siege.py --binary target/release/omni-actors --seconds 3600 --out DIR
    python3 tools/siege.py --binary ... --checkpoint tests/fixtures/qwen3_tts/base --svg docs/images/siege.svg --out DIR

Attacks come in a seeded order, a few at once, some from the address of the ordinary clients. The ordinary clients ask for
the same requests again and again, come again where they are told to (429, 503), and compare every byte with what the idle
server answered. Every ten seconds the state of the server is written to DIR/samples.jsonl; every few minutes the attacks
pause, and all that clients had must be given back. DIR/summary.json has the result, DIR/log.txt the log of the server,
DIR/memory.svg its memory. The summary says what the machine left to the server: load, time stolen by its host, time for
which threads waited for a processor. It fails if an ordinary answer was cut, changed or refused for good, if anything was
left, or if memory grew: in the rests of the second half by more than 16 MiB or 5 % over those of the first.

    python3 tools/siege.py --binary ... --in-turn 6 --out DIR      each attack six times in a row, a rest after each

shows the attack that leaves memory behind. Needs Linux and Python 3.9; root, for no_descriptors.
"""

import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import siege_attacks
import siege_plot

PATIENCE = 60
TEXTS = ["Hello there.", "The quick brown fox jumps over the lazy dog.", "One moment, please.", "It is raining again.",
         "Nothing takes it down.", "We meet at the old bridge."]
GAUGES = ["omni_requests_in_flight", "omni_http_input_bytes", "omni_http_output_bytes", "omni_ledger_bytes"]


class Server:
    """The process, its log that is read or not, and what can be seen of it from outside."""

    def __init__(self, args, folder):
        self.folder, self.clones = folder, bool(args.checkpoint)
        model = f'[model]\ncheckpoint = "{Path(args.checkpoint).resolve()}"\n' if args.checkpoint else ""
        config = f"""{model}[server]\nlisten = "127.0.0.1:0"\n[drill]\nenabled = true\nseed = {args.seed}
[reference_audio]\nallowed_folders = ["{folder}"]\n[voices]\ndirectory = "memory"
[stages.talker]\nplacement = "{args.placement}"\n[telemetry]\naccess_log = true\n{args.config}\n"""
        (folder / "config.toml").write_text(config)
        (folder / "noise.wav").write_bytes(os.urandom(10_000_000))
        self.process = subprocess.Popen([args.binary, "run", str(folder / "config.toml")], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, errors="replace")
        line = self.process.stdout.readline()
        host, port = line.split("http://")[1].split()[0].strip("/,").split(":")
        self.address, self.pid = (host, int(port)), self.process.pid
        self.waits = {}
        self.log_is_read = threading.Event()
        self.log_is_read.set()
        threading.Thread(target=self.keep_log, args=(Path(args.out) / "log.txt",), daemon=True).start()

    def keep_log(self, path):
        with path.open("w") as log:
            for line in self.process.stderr:
                self.log_is_read.wait()
                # An hour of access lines is of no use.
                if "omni_access" not in line:
                    log.write(line)
                    log.flush()

    def speech(self, text, plain=False, **fields):
        """A body that suits the model: the one that clones speaks with an embedding and does not end by itself."""
        own = {} if not self.clones or plain else {"speaker_embedding": [0.5] * 64, "max_new_tokens": 8}
        return json.dumps({"input": text, "seed": 1, **own, **fields}).encode()

    def ask(self, method, path, body=None, timeout=PATIENCE):
        """Status, headers and body over a connection of its own. Fails if the answer is cut."""
        connection = http.client.HTTPConnection(*self.address, timeout=timeout)
        try:
            connection.request(method, path, body, {"Host": "localhost", "Connection": "close",
                                                    "Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            connection.close()

    def metrics(self):
        sums = {}
        for line in self.ask("GET", "/metrics")[2].decode().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def children(self):
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[1]) == self.pid and fields[0] != "Z":
                    found.append(int(entry.name))
        return found

    def status(self, pid, *keys):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return [0] * len(keys)
        values = dict(line.split(":", 1) for line in lines if ":" in line)
        return [int(values.get(key, "0").split()[0]) for key in keys]

    def sample(self):
        """Memory in MiB of the process, how much of that is no file (weights are), and of its stages' processes; descriptors,
        threads."""
        rss, most, threads, anonymous = self.status(self.pid, "VmRSS", "VmHWM", "Threads", "RssAnon")
        children = sum(self.status(child, "VmRSS")[0] for child in self.children())
        return {"rss": round(rss / 1024, 1), "most": round(most / 1024, 1),
                "anonymous": round(anonymous / 1024, 1), "children": round(children / 1024, 1),
                "descriptors": len(os.listdir(f"/proc/{self.pid}/fd")), "threads": threads}

    def waited(self):
        """Seconds for which threads of the server and of its stages waited for a processor, by thread; one that has ended
        keeps what was seen of it last."""
        for pid in (self.pid, *self.children()):
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                try:
                    self.waits[str(path)] = int(path.read_text().split()[1]) / 1e9
                except (OSError, IndexError):
                    continue
        return sum(self.waits.values()), max(self.waits.values(), default=0)

    def until(self, what, is_so):
        """Waits for something that must become so; what was seen last, if it does not."""
        begun = time.monotonic()
        while not is_so(seen := what()):
            if time.monotonic() - begun > PATIENCE:
                return seen
            time.sleep(0.1)
        return None


class Host:
    """What the machine had left for the server, since this was made."""

    def __init__(self, server):
        self.server, self.begun, self.first = server, time.monotonic(), self.now()

    def now(self):
        """Seconds of all processors by kind, and of the time in which any task waited for one (0 where Linux does not
        tell)."""
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        user, nice, system, idle, iowait, irq, softirq, steal = (
            int(field) / os.sysconf("SC_CLK_TCK") for field in fields[:8])
        try:
            some = int(Path("/proc/pressure/cpu").read_text().splitlines()[0].rpartition("=")[2]) / 1e6
        except OSError:
            some = 0
        return {"busy": user + nice + system + irq + softirq, "idle": idle + iowait, "steal": steal, "pressure": some}

    def summary(self, loads):
        now, seconds = self.now(), time.monotonic() - self.begun
        spent = {name: now[name] - self.first[name] for name in now}
        processors = max(spent["busy"] + spent["idle"] + spent["steal"], 0.001)
        of_all, of_one = self.server.waited()
        return {"processors": os.cpu_count(), "load": {"least": min(loads), "mean": round(statistics.mean(loads), 2),
                                                       "most": max(loads)},
                "busy_share": round(spent["busy"] / processors, 3),
                "steal_share": round(spent["steal"] / processors, 4),
                "some_task_waited_share": round(spent["pressure"] / seconds, 3),
                "server_waited_s": {"all_threads": round(of_all, 1), "worst_thread": round(of_one, 1)}}


class Ordinary:
    """Clients that ask for the same requests again and again, and what they heard."""

    def __init__(self, server, events):
        self.server, self.events, self.over, self.lock = server, events, threading.Event(), threading.Lock()
        self.live, self.speech, self.count, self.refused, self.bad = [], [], 0, 0, 0
        self.requests, self.truth = [], {}

    def learn(self):
        """What the idle server answers; then a request that brings its stage down each time is looked for."""
        for number, text in enumerate(TEXTS):
            streamed = {"stream_format": "audio", "response_format": "pcm"} if number % 2 else {}
            body = self.server.speech(text, **streamed)
            status, _, sound = self.server.ask("POST", siege_attacks.SPEECH, body)
            assert status == 200 and len(sound) > 1000, (status, sound[:200])
            self.truth[body] = sound
        for number in range(300 if self.server.clones else 0):
            siege_attacks.upload(self.server, f"kept-{number}")
        kind = "kill" if self.server.children() else "panic"
        rule = {"stage": "talker", "point": "runner", "kind": kind, "one_in": 150, "times": "all"}
        status, _, told = self.server.ask("POST", "/debug/faults", json.dumps({"faults": [rule]}).encode())
        assert status == 200, told
        fine = lambda body: self.server.ask("POST", siege_attacks.SPEECH, body)[0] == 200
        self.requests = [body for body in self.truth if fine(body)]
        probes = (self.server.speech(f"This is probe {number}.", max_new_tokens=4) for number in range(2000))
        self.server.guilty = next(body for body in probes if not fine(body))
        return json.loads(self.server.guilty)["input"]

    def one(self, rng):
        body, begun, last = rng.choice(self.requests), time.monotonic(), None
        while True:
            try:
                status, headers, sound = self.server.ask("POST", siege_attacks.SPEECH, body)
            except (OSError, http.client.HTTPException) as error:
                # A connection that was refused before an answer began is tried again; an answer that was cut is bad.
                if isinstance(error, http.client.IncompleteRead):
                    return self.is_bad(body, f"cut after {len(error.partial)} bytes")
                status, headers, sound, last = 0, {}, b"", repr(error)
            took = time.monotonic() - begun
            if status == 200:
                with self.lock:
                    self.count += 1
                    self.speech.append(took)
                return None if sound == self.truth[body] else self.is_bad(body, f"other bytes: {len(sound)}")
            if status not in (0, 429, 503):
                return self.is_bad(body, f"{status}: {sound[:300]!r}")
            last = last or f"{status}: {sound[:300]!r}"
            with self.lock:
                self.refused += 1
            if took > PATIENCE or self.over.is_set():
                return None if self.over.is_set() else self.is_bad(body, f"refused for {took:.0f} s: {last}")
            time.sleep(min(1.0, float(headers.get("Retry-After", 0.2))))

    def is_bad(self, body, why):
        with self.lock:
            self.bad += 1
        self.events("bad", request=body.decode(), why=why)

    def ask_on(self, seed):
        rng = random.Random(seed)
        while not self.over.is_set():
            self.one(rng)
            self.over.wait(rng.uniform(0.5, 2))

    def look(self):
        """Whether the server lives, each half second."""
        while not self.over.wait(0.5):
            begun = time.monotonic()
            try:
                status = self.server.ask("GET", "/live")[0]
            except (OSError, http.client.HTTPException) as error:
                status = repr(error)
            self.live.append(time.monotonic() - begun)
            if status != 200:
                self.events("not live", status=status)

    def take(self):
        """What was measured since the last time."""
        with self.lock:
            live, speech = self.live, self.speech
            self.live, self.speech = [], []
            return live, speech


def siege(args, server, out):
    begun, running, lock = time.monotonic(), {}, threading.Lock()
    events_file, samples_file = (out / "events.jsonl").open("w"), (out / "samples.jsonl").open("w")

    def write(file, what):
        with lock:
            file.write(json.dumps({"at": round(time.monotonic() - begun, 1), **what}) + "\n")
            file.flush()

    def events(kind, **what):
        write(events_file, {"event": kind, "attacks": sorted(running.values()), **what})

    ordinary, host = Ordinary(server, events), Host(server)
    events("guilty", text=ordinary.learn())
    samples, rests, lives, speeches, counts, broken, turns = [], [], [], [], {}, [], {}

    def sample(resting=False):
        live, speech = ordinary.take()
        lives.extend(live)
        speeches.extend(speech)
        worst = lambda values, unit: round(max(values, default=0) * unit, 2)
        waited = server.waited()
        taken = {"at": round(time.monotonic() - begun, 1), **server.sample(), "live_ms": worst(live, 1000),
                 "speech_s": worst(speech, 1), "load": os.getloadavg()[0], "rest": resting,
                 "waited_s": round(waited[0], 1),
                 "ordinary": ordinary.count, "refused": ordinary.refused, "attacks": sorted(running.values())}
        samples.append(taken)
        write(samples_file, taken)
        return taken

    def keep_sampling():
        while not ordinary.over.wait(10) and server.process.poll() is None:
            sample()

    def rest():
        """No attack runs: all that clients had is given back."""
        while running:
            time.sleep(0.1)
        idle = lambda: {name: value for name, value in server.metrics().items() if name in GAUGES}
        if args.quiet:
            ordinary.over.set()
        left = server.until(idle, lambda gauges: not any(gauges.values()))
        left = left or server.until(lambda: server.ask("GET", "/ready")[0], lambda status: status == 200)
        taken = sample(resting=True)
        rests.append(taken)
        if left:
            broken.append(f"at {taken['at']} s this was left: {left}")
            events("left", what=left)

    def run(attack, seconds, number):
        rng = random.Random(f"{args.seed} {number}")
        source = rng.choice(["127.0.0.1"] + [f"127.0.0.{address}" for address in range(2, 9)])
        fight = siege_attacks.Attack(server, rng, source, seconds)
        try:
            attack(fight)
        except Exception as error:  # One that cannot go on harms nobody but itself.
            events("attack ended", attack=attack.__name__, error=repr(error))
        finally:
            fight.close()
            running.pop(number)

    args.quiet = False
    rest()
    clients = [threading.Thread(target=ordinary.ask_on, args=(seed,), daemon=True) for seed in range(args.clients)]
    clients += [threading.Thread(target=work, daemon=True) for work in (ordinary.look, keep_sampling)]
    for client in clients:
        client.start()
    rng, number = random.Random(args.seed), 0
    attacks = siege_attacks.ALL + (siege_attacks.CLONES if server.clones else [])
    attacks = [entry for entry in attacks if not args.only or entry[0].__name__ in args.only]

    def goes_on():
        return time.monotonic() - begun < args.seconds and server.process.poll() is None

    def start(attack, seconds):
        nonlocal number
        number += 1
        running[number] = attack.__name__
        counts[attack.__name__] = counts.get(attack.__name__, 0) + 1
        threading.Thread(target=run, args=(attack, seconds, number), daemon=True).start()

    if args.in_turn:
        for attack, seconds in attacks:
            memory = [rests[-1]["anonymous"]]
            for _ in range(args.in_turn):
                if goes_on():
                    start(attack, seconds)
                    rest()
                    memory.append(rests[-1]["anonymous"])
            turns[attack.__name__] = memory
            print(f"{attack.__name__:24} MiB at rest without files, before and after each:", *memory, flush=True)
    else:
        mixture(args, rng, attacks, running, goes_on, start, rest)
    if server.process.poll() is not None:
        broken.append(f"the server ended with {server.process.returncode}")
        events("ended", code=server.process.returncode)
    else:
        args.quiet = True
        rest()
    ordinary.over.set()
    summary = finish(samples, rests, sorted(lives), sorted(speeches), counts, ordinary, broken)
    summary["host"] = host.summary([taken["load"] for taken in samples])
    return {**summary, "mib_without_files_in_turn": turns} if turns else summary


def mixture(args, rng, attacks, running, goes_on, start, rest):
    """Starts attacks in a random order, a few at once, until the time is over; a rest now and then."""
    bag, rested = [], time.monotonic()
    while goes_on():
        if time.monotonic() - rested > args.rest_every:
            rest()
            rested = time.monotonic()
        if len(running) < args.at_once:
            if not bag:
                bag = rng.sample(attacks, len(attacks))
            start(*bag.pop())
        time.sleep(rng.uniform(0, 2))


def finish(samples, rests, lives, speeches, counts, ordinary, broken):
    """The summary; `bad` tells what must not be."""
    first, last = rests[0], rests[-1]
    at = lambda values, part: round(values[int(part * (len(values) - 1))], 3) if values else None
    halves = rests[1:len(rests) // 2 + 1], rests[len(rests) // 2 + 1:]
    medians = [statistics.median(rest["rss"] for rest in half) if half else None for half in halves]
    if None not in medians and medians[1] > max(medians[0] + 16, medians[0] * 1.05):
        broken.append(f"memory in rests grew from {medians[0]} to {medians[1]} MiB")
    if last["descriptors"] > first["descriptors"] + 16 or last["threads"] > first["threads"] + 16:
        broken.append("descriptors or threads were left")
    if ordinary.bad:
        broken.append(f"{ordinary.bad} ordinary answers were not as they should be")
    return {
        "bad": broken, "seconds": last["at"], "attacks": dict(sorted(counts.items())), "attacks_all": sum(counts.values()),
        "ordinary": {"answered": ordinary.count, "bad": ordinary.bad, "told_to_come_again": ordinary.refused,
                     "speech_s": {"median": at(speeches, 0.5), "p99": at(speeches, 0.99), "worst": at(speeches, 1)}},
        "live_ms": {name: at([1000 * value for value in lives], part)
                    for name, part in (("median", 0.5), ("p99", 0.99), ("worst", 1))},
        "live_asked": len(lives), "live_over_1s": sum(value > 1 for value in lives),
        "rss_mib": {"idle": first["rss"], "rests": [rest["rss"] for rest in rests], "median_of_halves": medians,
                    "rests_without_files": [rest["anonymous"] for rest in rests],
                    "most": max(taken["most"] for taken in samples), "end": last["rss"]},
        "descriptors": [first["descriptors"], max(taken["descriptors"] for taken in samples), last["descriptors"]],
        "threads": [first["threads"], max(taken["threads"] for taken in samples), last["threads"]],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/release/omni-actors")
    parser.add_argument("--checkpoint", default="", help="a checkpoint that clones voices; nothing: the embedded voice")
    parser.add_argument("--placement", default="thread", choices=["thread", "process"], help="of the talker")
    parser.add_argument("--config", default="", help="more lines of config")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=2, help="ordinary ones")
    parser.add_argument("--at-once", type=int, default=3, help="attacks")
    parser.add_argument("--rest-every", type=float, default=240, help="seconds")
    parser.add_argument("--only", nargs="*", help="names of attacks")
    parser.add_argument("--in-turn", type=int, default=0, metavar="TIMES",
                        help="attacks one after the other, each so often in a row, a rest after each")
    parser.add_argument("--out", default="siege", help="folder")
    parser.add_argument("--svg", help="where else to draw memory over time")
    args = parser.parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, Path(folder))
        try:
            server.until(lambda: server.ask("GET", "/ready")[0], lambda status: status == 200)
            summary = siege(args, server, out)
        finally:
            server.process.terminate()
            server.log_is_read.set()
            code = server.process.wait(PATIENCE)
    if code != 0:
        summary["bad"].append(f"the server ended with {code} when it was asked to")
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary, indent=1))
    for path in filter(None, (out / "memory.svg", args.svg)):
        Path(path).write_text(siege_plot.svg(out / "samples.jsonl"))
    sys.exit(1 if summary["bad"] else 0)


if __name__ == "__main__":
    main()
