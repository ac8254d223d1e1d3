"""How high a voice speaks, in folders of wav files: python drift.py DIR... -> {"DIR": median F0 in Hz, ...}. Needs `librosa`."""

import glob, json, sys

import librosa, numpy as np


def pitch(path):
    """Median F0 in Hz of what is voiced."""
    wave, rate = librosa.load(path, sr=16000)
    f0, voiced, _ = librosa.pyin(wave, fmin=70, fmax=400, sr=rate, frame_length=1024)
    return float(np.median(f0[voiced]))


if __name__ == "__main__":
    means = {d: np.mean([pitch(path) for path in sorted(glob.glob(f"{d}/*.wav"))]) for d in sys.argv[1:]}
    print(json.dumps({folder: round(float(mean), 1) for folder, mean in means.items()}))
