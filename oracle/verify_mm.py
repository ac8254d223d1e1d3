"""Runs verify_claims.py's Omni checks (talker prompt, trailing text, step recurrence from raw weights) on the mm_* goldens.  run: verify_mm.py ROOT   (ROOT/qwen3_omni/{model.safetensors,config.json,golden/mm_*}; verify_claims.py beside this file)"""

import sys, os, glob, re

root = sys.argv[1]
src = (
    open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "verify_claims.py"))
    .read()
    .split("# ---- TTS ----")[0]
)
names = tuple(sorted(os.path.basename(p)[:-12] for p in glob.glob(f"{root}/qwen3_omni/golden/mm_*.safetensors")))
exec(re.sub(r"for case in \(.*?\):\n", f"for case in {names!r}:\n", src, count=1))
