#!/usr/bin/env python3
"""Writes the licences of all that the binary is made of: crates, the standard library, the voice's training data.

    scripts/notices.py -o THIRD-PARTY-NOTICES [--features cuda]
    scripts/notices.py --check

Asks `cargo metadata` which packages the binary is linked from (no dev-dependencies) and takes each licence's text from
the package itself. A package that ships no text gets the text of its licence where that is known here; otherwise the
script fails, and a person has to look. `--check` writes nothing. Needs nothing but Python 3.9 and cargo.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY = "omni-actors"
NAMES = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)
RULE = "-" * 80

MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""


def metadata(features):
    """What cargo resolves for the machine that the binary is built on."""
    host = re.search(r"^host: (.*)$", output("rustc", "-vV"), re.MULTILINE).group(1)
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host]
    if features:
        command += ["--features", features]
    return json.loads(output(*command))


def output(*command):
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def linked(data):
    """Packages that the binary is built from, its own workspace excluded. Procedural macros count: what they write is
    compiled in."""
    packages = {package["id"]: package for package in data["packages"]}
    dependencies = {
        node["id"]: [d["pkg"] for d in node["deps"] if any(kind["kind"] is None for kind in d["dep_kinds"])]
        for node in data["resolve"]["nodes"]
    }
    root = next(package["id"] for package in data["packages"] if package["name"] == BINARY)
    seen, todo = set(), [root]
    while todo:
        package = todo.pop()
        if package not in seen:
            seen.add(package)
            todo += dependencies[package]
    return sorted((packages[i] for i in seen - set(data["workspace_members"])), key=lambda p: (p["name"], p["version"]))


def texts(package):
    """The licence texts in a package's folder."""
    folder = Path(package["manifest_path"]).parent
    files = [path for path in sorted(folder.iterdir()) if NAMES.match(path.name)]
    files += [path for inside in files if inside.is_dir() for path in sorted(inside.iterdir())]
    if package["license_file"]:
        files.append(folder / package["license_file"])
    found = (path.read_text(encoding="utf-8", errors="replace").strip() for path in files if path.is_file())
    return list(dict.fromkeys(text for text in found if text))


def known(package):
    """The text of a licence for a package that ships none."""
    licence = package["license"] or ""
    if "MIT" in licence:
        return [f"Copyright (c) {', '.join(package['authors']) or 'the authors of ' + package['name']}\n\n{MIT}"]
    if "Apache-2.0" in licence:
        return [(ROOT / "LICENSE").read_text()]
    return []


def notices(packages, voice):
    """The document, and what no licence is known of."""
    # By the words alone: many copies of one licence differ in their line breaks.
    users, wording, unknown = defaultdict(list), {}, []

    def add(text, label):
        words = " ".join(text.split())
        users[wording.setdefault(words, text)].append(label)

    lines = [
        f"{BINARY} is licensed under Apache-2.0 (see LICENSE). The binary also contains what is listed here.",
        "",
        "Packages, their licences, and where their sources are:",
        "",
    ]
    for package in packages:
        label = f"{package['name']} {package['version']}"
        where = package["repository"] or package["homepage"] or "see the package"
        lines.append(f"  {label}: {package['license'] or 'see its text'}; {where}")
        found = texts(package) or known(package)
        if not found:
            unknown.append(f"{label} ({package['license']})")
        for text in found:
            add(text, label)
    rust = output("rustc", "--version").split()[1]
    lines.append(f"  the Rust standard library {rust}: MIT OR Apache-2.0; https://github.com/rust-lang/rust")
    add(f"Copyright (c) The Rust Project Contributors\n\n{MIT}", f"the Rust standard library {rust}")
    if voice:
        add((ROOT / "assets/voice/PROVENANCE.txt").read_text().strip(), "the embedded voice")
    for text, labels in sorted(users.items(), key=lambda item: (-len(item[1]), item[1])):
        lines += ["", RULE, ", ".join(labels), RULE, "", text]
    return "\n".join(lines) + "\n", unknown


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", default="", help="as for cargo build")
    parser.add_argument("--no-voice", action="store_true", help="the binary carries no voice")
    parser.add_argument("--check", action="store_true", help="only find out whether every licence has a text")
    parser.add_argument("-o", "--output", type=Path, help="the file to write")
    args = parser.parse_args()
    if not args.check and not args.output:
        parser.error("give -o FILE or --check")
    packages = linked(metadata(args.features))
    document, unknown = notices(packages, not args.no_voice)
    if unknown:
        sys.exit("no licence text, and none known here (scripts/notices.py): " + ", ".join(unknown))
    if not args.check:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(document, encoding="utf-8")
    print(f"{len(packages)} packages, each with the text of its licence")


if __name__ == "__main__":
    main()
