"""Build tiny stand-ins for the CUDA runtime libraries that PyPI's x86-64 torch wheel links to, so `import torch` works
on a CPU-only machine without the nvidia-* wheels. Every symbol returns 100 (cudaErrorNoDevice)."""

import subprocess, re, os, sys, glob, collections

lib = sys.argv[1]
out = sys.argv[2]
os.makedirs(out, exist_ok=True)
want = collections.defaultdict(lambda: collections.defaultdict(set))  # soname -> version -> syms
sonames = set()
pat = re.compile(r"^(libcu|libnccl|libnv)")
unver = set()
defined = set()
for f in glob.glob(lib + "/*.so*"):
    d = subprocess.run(["readelf", "-dW", f], capture_output=True, text=True).stdout
    for n in re.findall(r"NEEDED.*\[(.*?)\]", d):
        if pat.match(n):
            sonames.add(n)
for f in glob.glob(lib + "/*.so*"):
    for ln in subprocess.run(["nm", "-D", f], capture_output=True, text=True).stdout.splitlines():
        p = ln.split()
        if len(p) == 2 and p[0] in "Uw":
            s = p[1]
            if "@" in s:
                n, v = re.split("@+", s)
                if v in sonames or v.startswith(("libcu", "libnccl", "libnv", "NVTX")):
                    want[v][v].add(n)
            elif re.match(r"(cu[a-z]|cu[A-Z]|__cuda|nccl|nvtx|nvrtc|nvJit|cupti)", s):
                unver.add(s)
        elif len(p) == 3:
            defined.add(p[2].split("@")[0])
unver -= defined
allv = set().union(*[x for w in want.values() for x in w.values()]) if want else set()
unver -= allv
print({k: {v: len(s) for v, s in w.items()} for k, w in want.items()}, "unversioned", len(unver), sorted(unver)[:5])
for so in sorted(sonames):
    syms = set()
    ver = None
    for v, s in want.get(so, {}).items():
        syms |= s
        ver = v
    extra = unver if so.startswith("libcudart") else set()
    c = "".join(f"long {s}(void){{return 100;}}\n" for s in sorted(syms | extra))
    src = f"{out}/{so}.c"
    open(src, "w").write(c or "int stub_dummy;\n")
    args = ["gcc", "-w", "-O1", "-fno-builtin", "-shared", "-fPIC", "-o", f"{out}/{so}", src, f"-Wl,-soname,{so}"]
    if ver:
        vs = f"{out}/{so}.map"
        open(vs, "w").write(f"{ver} {{ global: {' '.join(x + ';' for x in sorted(syms))} }};\n")
        args.append(f"-Wl,--version-script={vs}")
    subprocess.run(args, check=True)
print(sorted(sonames))
