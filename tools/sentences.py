"""The list of sentences that tools/say_all.py speaks and tools/wer.py judges."""

from pathlib import Path


def read(path):
    """Sentences of a file, in order: one a line; empty lines and lines that start with '#' do not count."""
    lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise SystemExit(f"{path}: no sentences in it")
    return found


def wav_name(number):
    """File name of sentence `number`, counted from 1: 01.wav, 02.wav, ..."""
    return f"{number:02d}.wav"
