"""Teacher speech: hibari-tts (Apache-2.0, a distilled Kokoro-82M "af_heart", Apache-2.0), CPU only.

    python synth.py texts.txt OUT_DIR --hibari FOLDER [--workers 16] [--limit N] [--dual 0.5] [--seconds S]

Three voices. "heart" is the teacher's own voice, about 190 Hz. "alto" is the teacher asked to speak 1.2 times faster and
then slowed down by resampling 6/5: same pace, pitch and formants 17 % lower. "tenor" is the alto with a larynx of its own:
pitch another 29 % lower, about 112 Hz, with 10 % more swing. The harmonics of the old pitch stand in the spectrum that
shapes the pulses, so that is blurred over 220 Hz before (DNSMOS of 40 sentences 3.30; without about 3.0, heart 3.28).
Heart says every text, --dual tells what share of them the others say: half of them each, and no text both, by default.

Writes OUT_DIR/part_K.npy (int16 samples, all utterances of the part back to back), part_K.lab.npy (int16 [frames, 3]: the
phoneme that sounds at the beginning, middle and end of every 80 ms frame, 0 for none; from the teacher's own durations)
and part_K.json ([[text index, voice, first sample, samples], ...]); a part is complete once its json is there. A run goes
on where the last one ended.
"""

import argparse, json, os, random, sys, time

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np

SR, RMS, FRAME = 24000, 0.085, 1920
LEAD, TRAIL = 0.20, 0.14  # seconds of near-silence kept around the speech
VOICES = ("heart", "alto", "tenor")
SPEED, UP, DOWN = 1.2, 6, 5  # the alto, and the tenor
LOWER, SWING, BLUR = 0.71, 1.1, 5  # the tenor: its pitch, how far that moves, and bins of 20 Hz to each side


def resample(w, up, down):
    """Band-limited, by FFT."""
    n = -(-len(w) // (down * 200)) * down * 200
    return (np.fft.irfft(np.fft.rfft(np.pad(w, (0, n - len(w)))), n * up // down) * (up / down)).astype(np.float32)


def larynx(lh, f0):
    """The tenor's: the spectrum of the harmonics without those of the old pitch, and the new pitch."""
    n = 2 * BLUR + 1
    total = np.cumsum(np.pad(lh, ((BLUR + 1, BLUR), (0, 0)), "edge"), 0, dtype=np.float64)
    voiced = f0 > 40
    if not voiced.any():
        return lh, f0
    mean = np.exp(np.log(f0[voiced]).mean())
    pitch = np.where(voiced, np.clip(mean * LOWER * (np.maximum(f0, 1) / mean) ** SWING, 60, 480), 0)
    return ((total[n:] - total[:-n]) / n).astype(np.float32), pitch.astype(np.float32)


def with_alignment(path):
    """The teacher's graph with one more output: which phoneme each of its frames belongs to."""
    import onnx

    m = onnx.load(path)
    counts = [n for n in m.graph.node if n.op_type == "ReduceSum" and n.output[0] == "/ReduceSum_1_output_0"]
    if len(counts) != 1:
        raise SystemExit("hibari: not the graph of version 0.2.1, whose alignment this recipe reads")
    m.graph.output.append(onnx.helper.make_tensor_value_info(counts[0].output[0], onnx.TensorProto.INT64, None))
    return m.SerializeToString()


class Teacher:
    """path: folder that holds the package `hibari`."""

    def __init__(self, path=None):
        if path:
            sys.path.insert(0, path)
        from hibari import Hibari, dsp
        import onnxruntime as ort

        self.h, self.dsp = Hibari(), dsp
        so = ort.SessionOptions()
        so.intra_op_num_threads = so.inter_op_num_threads = 1
        so.log_severity_level = 3
        self.sess = ort.InferenceSession(with_alignment(self.h.model_path), so, providers=["CPUExecutionProvider"])

    def ids(self, text):
        return [x for x in (self.h.ids(p) for p in self.h.phonemize(text)) if len(x) >= 3]

    def nets(self, phonemes, speed=1.0):
        return [
            (
                ids,
                [
                    x[0] if k < 6 else x
                    for k, x in enumerate(
                        self.sess.run(
                            None, {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
                        )
                    )
                ],
            )
            for ids in phonemes
        ]

    def sound(self, net, name, rng):
        """Samples of one piece, before they are resampled."""
        lh, th, ln, lr, phi, f0, _ = net
        if name == "tenor":
            lh, f0 = larynx(lh, f0)
        return self.dsp.synth(lh, th, ln, lr, phi, f0, rng)

    def voice(self, outs, name, rng):
        """-> int16 samples, labels [frames, 3]; None if nothing can be heard."""
        ws, ls = [], []
        for ids, net in outs:
            w = self.sound(net, name, rng)
            lab = np.asarray(ids, np.int16)[np.clip(net[-1], 0, len(ids) - 1)]
            hop = len(w) // len(lab)  # the alignment counts frames of 600 samples, the spectrum has two for each
            if hop * len(lab) != len(w):
                raise ValueError(f"{len(w)} samples for an alignment of {len(lab)} frames")
            if name != "heart":
                w = resample(w, UP, DOWN)
                hop = hop * UP // DOWN
            l = np.repeat(lab, hop)[: len(w)]
            ws.append(w)
            ls.append(np.pad(l, (0, len(w) - len(l))))
        if not ws:
            return None
        w, l = np.concatenate(ws), np.concatenate(ls)
        e = np.sqrt(np.convolve(w * w, np.ones(240, np.float32) / 240, "same"))
        act = e > 0.1 * e.max()
        g = min(RMS / (np.sqrt(np.mean(e[act] ** 2)) + 1e-9), 0.9 / (np.abs(w).max() + 1e-9))
        w, e = w * g, e * g
        nz = np.nonzero(e > 0.006)[0]
        if len(nz) == 0:
            return None
        a, b = nz[0] - int(LEAD * SR), nz[-1] + int(TRAIL * SR)
        w, l = w[max(a, 0) : b], l[max(a, 0) : b]
        if a < 0:
            w, l = np.concatenate([np.zeros(-a, np.float32), w]), np.concatenate([np.zeros(-a, np.int16), l])
        k = np.arange(-(-len(w) // FRAME) * 3) * (FRAME // 3) + FRAME // 6
        lab = np.where(k < len(w), l[np.minimum(k, len(w) - 1)], 0).astype(np.int16).reshape(-1, 3)
        return (np.clip(w, -1, 1) * 32767).astype(np.int16), lab


T_ = None


def work(job):
    global T_
    k, items, out, hib, dual, stop = job
    if time.time() > stop or os.path.exists(f"{out}/part_{k:05d}.json"):
        return 0
    t = T_ = T_ or Teacher(hib)
    rng = np.random.default_rng(k)
    wavs, labs, meta, off = [], [], [], 0
    for idx, text in items:
        chance = rng.random()
        for v, name in enumerate(VOICES):
            if v and not (chance if v == 1 else 1 - chance) < dual:
                continue
            try:
                if v == 0:
                    ph = t.ids(text)
                r = t.voice(t.nets(ph, SPEED if v else 1.0), name, rng)
            except Exception as e:
                print("skip", text, repr(e)[:80], flush=True)
                break
            if r is None or len(r[0]) > 12 * SR:
                continue
            wavs.append(r[0])
            labs.append(r[1])
            meta.append([idx, v, off, len(r[0])])
            off += len(r[0])
    if not wavs:
        return 0
    p = f"{out}/part_{k:05d}"
    np.save(p + ".npy", np.concatenate(wavs))
    np.save(p + ".lab.npy", np.concatenate(labs))
    json.dump(meta, open(p + ".tmp", "w"))
    os.rename(p + ".tmp", p + ".json")
    return off / SR


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("texts")
    ap.add_argument("out")
    ap.add_argument("--workers", type=int, default=os.cpu_count())
    ap.add_argument("--limit", type=int)
    ap.add_argument("--skip", type=int, default=0, help="texts left out at the beginning")
    ap.add_argument(
        "--dual", type=float, default=0.5, help="share of the texts also spoken by each of the other voices"
    )
    ap.add_argument("--hibari", default=None, help="folder with the package, if it is not installed")
    ap.add_argument("--seconds", type=float, default=1e9, help="start no new part after this long")
    ap.add_argument("--part", type=int, default=200, help="texts per part")
    a = ap.parse_args()
    import multiprocessing as mp

    os.makedirs(a.out, exist_ok=True)
    T = [(i, l.rstrip("\n")) for i, l in enumerate(open(a.texts))][a.skip : a.limit]
    stop = time.time() + a.seconds
    jobs = [
        ((a.skip + i) // a.part, T[i : i + a.part], a.out, a.hibari, a.dual, stop) for i in range(0, len(T), a.part)
    ]
    random.Random(0).shuffle(jobs)  # a run that is stopped has some of every kind of text
    t0, tot = time.time(), 0
    with mp.get_context("spawn").Pool(a.workers) as p:
        for n, s in enumerate(p.imap_unordered(work, jobs)):
            tot += s
            if n % 50 == 0:
                print(f"[synth] {n + 1}/{len(jobs)} parts, {tot / 3600:.2f} h in {time.time() - t0:.0f} s", flush=True)
    open(f"{a.out}/DONE", "w").write("ok")
    print(f"[synth] done {tot / 3600:.2f} h in {time.time() - t0:.0f} s", flush=True)
