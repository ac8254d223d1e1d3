"""Mean DNSMOS (overall) of the first fifty wav files of every folder: python mos.py DIR... -> {"DIR": 3.2, ...}. Needs `speechmos`, `librosa`."""

import glob, json, sys

from speechmos import dnsmos

import librosa

if __name__ == "__main__":
    out = {}
    for folder in sys.argv[1:]:
        waves = [librosa.load(path, sr=16000)[0] for path in sorted(glob.glob(f"{folder}/*.wav"))[:50]]
        scores = [dnsmos.run(w.clip(-1, 1), 16000)["ovrl_mos"] for w in waves]
        out[folder] = round(sum(scores) / len(scores), 2)
    print(json.dumps(out))
