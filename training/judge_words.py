"""The words of a running server against the teacher's alignment, over HTTP, as a client gets them.

    python judge_words.py --url http://127.0.0.1:8080 --sentences heldout.txt [--limit 60] [--voice heart]

The server speaks each sentence (seed 0, 1, ...) and tells its words; the teacher speaks it too and knows when its words
sound, which dynamic time warping carries over to the server's audio (aligned.py, to 20 ms). Sentences that the teacher
reads as other words than are written are left out. Prints, in ms, how far apart the two are.
"""

import argparse, base64, json, urllib.request
import numpy as np
from aligned import PARTS, Reader, carried_over, labels


def ask(url, text, voice, seed):
    body = {"input": text, "voice": voice, "seed": seed, "response_format": "pcm", "timestamp_granularities": ["word"]}
    request = urllib.request.Request(
        url + "/v1/audio/speech", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        answer = json.load(response)
    return np.frombuffer(base64.b64decode(answer["audio"]), "<i2").astype(np.float32) / 32768, answer["words"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--url", required=True)
    ap.add_argument("--sentences", required=True)
    ap.add_argument("--limit", type=int, default=60)
    ap.add_argument("--voice", default="heart")
    ap.add_argument("--hibari", default=None)
    a = ap.parse_args()
    reader, begin, end, left_out = Reader(a.hibari), [], [], 0
    for seed, text in enumerate(open(a.sentences).read().split("\n")[:-1][: a.limit]):
        speech = reader.read(text, a.voice, np.random.default_rng(seed))
        if speech is None:
            left_out += 1
            continue
        sound, words = ask(a.url, text, a.voice, seed)
        assert [w["word"] for w in words] == text.split(), (text, words)
        fine, _ = carried_over(sound, speech)
        _, word = labels(fine, speech[1], -(-len(fine) // PARTS))
        quarter = 80 / PARTS
        for k, w in enumerate(words):
            theirs = np.nonzero(word.reshape(-1) == k)[0]
            if len(theirs):
                begin.append(w["start"] * 1000 - theirs[0] * quarter)
                end.append(w["end"] * 1000 - (theirs[-1] + 1) * quarter)
    for name, x in (("begin", np.array(begin)), ("end", np.array(end))):
        print(
            f"{a.voice}, {name} of {len(x)} words: {100 * (abs(x) <= 80.5).mean():.1f} % within 80 ms; "
            f"5th, 50th, 95th percentile {np.percentile(x, [5, 50, 95]).round().astype(int).tolist()} ms"
        )
    both = np.maximum(abs(np.array(begin)), abs(np.array(end))) <= 80.5
    print(f"{a.voice}, both: {100 * both.mean():.1f} %; {left_out} sentences left out")


if __name__ == "__main__":
    main()
