"""What a server understands of voices that the training never heard.

    python judge_heard.py URL JUDGED_DIR [--before 0.3] [--behind 0.2] [--noise DB]

JUDGED_DIR is what `said.py --judge` leaves. Each question is asked as sound and typed, each sentence is to be written down,
greedily, by `POST /v1/chat/completions`, with so many seconds of silence before and behind. --noise: colored noise so many
dB below the sound. Prints by voice how many questions are answered as the typed ones, and the words that are wrong (all: of
voices never heard).
"""

import argparse, base64, collections, glob, io, json, urllib.request, wave
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from train_ears import ASK, Damage, SR, errors


def wav(samples):
    out = io.BytesIO()
    with wave.open(out, "wb") as f:
        f.setnchannels(1)
        f.setsampwidth(2)
        f.setframerate(SR)
        f.writeframes(samples.tobytes())
    return out.getvalue()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("url")
    ap.add_argument("judged")
    ap.add_argument("--before", type=float, default=0.3)
    ap.add_argument("--behind", type=float, default=0.2)
    ap.add_argument("--noise", type=float)
    a = ap.parse_args()
    damage = Damage(7, "cpu")

    def ask(content):
        body = {"messages": [{"role": "user", "content": content}], "modalities": ["text"], "temperature": 0}
        to = urllib.request.Request(
            f"{a.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        return json.load(urllib.request.urlopen(to, timeout=120))["choices"][0]["message"]["content"].strip()

    def sound(samples):
        x = np.pad(samples, (int(a.before * SR), int(a.behind * SR)))
        if a.noise is not None:
            x = x.astype(np.float32) / 32768
            x = x + damage.noise(1, len(x))[0].numpy() * np.sqrt(np.mean(x * x)) * 10 ** (-a.noise / 20)
            x = (np.clip(x, -1, 1) * 32767).astype(np.int16)
        return {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(x)).decode(), "format": "wav"}}

    def one(line, voice, heard):
        if line["kind"] == "q":
            return line, voice, ask([heard]), ask(line["label"])
        return line, voice, ask([heard, {"type": "text", "text": ASK[0]}]), ""

    lines, jobs = [json.loads(x) for x in open(f"{a.judged}/lines.jsonl")], []
    for path in sorted(glob.glob(f"{a.judged}/part_*.json")):
        pcm = np.load(path[:-5] + ".npy")
        jobs += [(lines[k], voice, sound(pcm[at : at + n])) for k, voice, at, n in json.load(open(path))]
    found = collections.defaultdict(lambda: [0, 0, 0, 0])
    with ThreadPoolExecutor(4) as pool:
        for line, voice, said, typed in pool.map(one, *zip(*jobs)):
            for key in (voice,) if voice == "teacher" else (voice, "all"):
                r = found[key]
                if line["kind"] == "q":
                    r[0] += said == typed
                    r[1] += 1
                else:
                    wrong, words = errors(line["label"], said)
                    r[2] += wrong
                    r[3] += words
    for voice, (right, asked, wrong, words) in sorted(found.items()):
        print(f"{voice}: {right} of {asked} answered, {100 * wrong / max(words, 1):.1f} % of {words} words wrong")


if __name__ == "__main__":
    main()
