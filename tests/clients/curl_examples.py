"""Runs the curl examples of docs/api.md as they would be pasted, against a running server.

Each ```sh block that calls curl is one example. It must exit with 0 and the server must answer 2xx; files that it
writes must not be empty.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

API = pathlib.Path(__file__).resolve().parents[2] / "docs" / "api.md"
DOCUMENTED = re.compile(r"(?:127\.0\.0\.1|localhost):8080")
# Shell functions, so that a pasted example fails on an HTTP error instead of printing it, and plays to a machine without
# a sound card.
STRICT = """set -euo pipefail
curl() { command curl --fail-with-body --silent --show-error --max-time 120 "$@"; }
aplay() { [ "$(wc -c)" -gt 1000 ]; }
"""


def examples(text):
    blocks = re.findall(r"^```(?:sh|bash|shell|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if re.search(r"\bcurl\b", block)]


def run(block, host, folder):
    script = STRICT + DOCUMENTED.sub(host, block)
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, timeout=180)
    written = re.findall(r"(?:-o|--output|>)\s+([\w./-]+)", block)
    empty = [name for name in written if name != "-" and not (folder / name).stat().st_size]
    return done, empty


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    host = parser.parse_args().base_url.removeprefix("http://").rstrip("/")
    found = examples(API.read_text())
    if not found:
        sys.exit("docs/api.md has no curl example")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for block in found:
            done, empty = run(block, host, pathlib.Path(folder))
            good = done.returncode == 0 and not empty
            failed += not good
            print("ok  " if good else "FAIL", " ".join(block.split())[:100])
            if not good:
                print(f"exit code {done.returncode}, empty files {empty}")
                print(done.stdout[-1000:].decode(errors="replace"), done.stderr[-1000:].decode(errors="replace"))
    print(f"{len(found) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
