"""Weights as bf16 files of at most ~15 MB each, to bring them home from a rented machine, and back.

    python pack.py to WORK_DIR OUT_DIR        the newest weights of every stage
    python pack.py from IN_DIR WORK_DIR       back to one file a stage (float32)

Of the codec, only what encoding needs is kept; its codebooks stay float32. state.pt of the talker is what a training goes on
from; its parts (talker and guides) become one list of tensors.
"""

import glob, os, sys
import torch

if torch.version.cuda and not torch.cuda.is_available():
    torch.cuda.is_current_stream_capturing = lambda: False
STAGES = {
    "thinker": ("thinker/thinker.pt", 1),
    "talker": ("talker/talker.pt", 2),
    "state": ("talker/state.pt", 2),
    "code2wav": ("c2w/code2wav.pt", 1),
    "codec": ("codec/codec.pt", 2),
}
UNUSED = ("dec.", "din.", "phones.", "rvq.s", "rvq.n", "mel.")


def flat(sd):
    """Tensors of tensors' folders, by path."""
    return {f"{k}/{n}": x for k, v in sd.items() if isinstance(v, dict) for n, x in v.items()} or sd


def folders(sd):
    out = {}
    for k, v in sd.items():
        out.setdefault(k.split("/")[0], {})[k.split("/", 1)[1]] = v
    return out


def pack(work, out):
    os.makedirs(out, exist_ok=True)
    for name, (path, parts) in STAGES.items():
        if not os.path.exists(f"{work}/{path}"):
            print("missing", path)
            continue
        sd = {
            k: v.to(torch.bfloat16) if v.is_floating_point() and not k.startswith("rvq") else v
            for k, v in flat(torch.load(f"{work}/{path}", map_location="cpu")).items()
            if name != "codec" or not k.startswith(UNUSED)
        }
        bins, size = [{} for _ in range(parts)], [0] * parts
        for k in sorted(sd, key=lambda k: -sd[k].numel()):
            i = size.index(min(size))
            bins[i][k] = sd[k]
            size[i] += sd[k].numel() * sd[k].element_size()
        for i, b in enumerate(bins):
            torch.save(b, f"{out}/{name}_{i}.pt")
        print(name, size)


def unpack(src, work):
    for name, (path, _) in STAGES.items():
        files = sorted(glob.glob(f"{src}/{name}_*.pt"))
        if not files:
            continue
        sd = {}
        for f in files:
            sd.update(torch.load(f, map_location="cpu"))
        os.makedirs(os.path.dirname(f"{work}/{path}"), exist_ok=True)
        sd = {k: v.float() if v.is_floating_point() else v for k, v in sd.items()}
        torch.save(folders(sd) if name == "state" else sd, f"{work}/{path}")
        open(f"{work}/{os.path.dirname(path)}/DONE", "w").write("ok")
        print(name, len(sd))


if __name__ == "__main__":
    {"to": pack, "from": unpack}[sys.argv[1]](*sys.argv[2:4])
