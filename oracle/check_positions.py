"""mrope_np (numpy, from the text of spec_multimodal.md) against every golden.  run: check_positions.py CKPT_CONFIG_JSON REAL_CONFIG_JSON GOLDEN_DIR FRONTEND_DIR   (numpy + safetensors only)"""

import sys, glob, json, os
import numpy as np
from safetensors.numpy import load_file

sys.modules.setdefault("torch", __import__("types").SimpleNamespace(cuda=__import__("types").SimpleNamespace()))
from mmlib import mrope_np

ck, real, gd, fd = sys.argv[1:5]
worst = 0
for f in sorted(glob.glob(f"{gd}/mm_*.safetensors")) + sorted(glob.glob(f"{fd}/frontend_chat_*.safetensors")):
    t = load_file(f)
    e2e = "mm_" in os.path.basename(f)[:3]
    cfg = json.load(open(ck if e2e else real))["thinker_config"]
    G = lambda k: t[k].tolist() if k in t else []
    p = "in." if e2e else ""
    fr = t["in.feature_attention_mask"].sum(1).tolist() if "in.feature_attention_mask" in t else G("audio_mel_frames")
    a = (G(p + "image_grid_thw"), G(p + "video_grid_thw"), G(p + "video_second_per_grid"), fr)
    for nm, ids, talker in (
        (("thinker", "input_ids", False), ("talker", "talker.prefill.input_ids", True))
        if e2e
        else (("", "input_ids", False),)
    ):
        ref = (
            t.get(f"{nm}.prefill.position_ids_f32", t.get(f"{nm}.prefill.position_ids")) if e2e else t["position_ids"]
        )[:, 0].astype(np.float32)
        d = float(np.abs(mrope_np(t[ids][0].tolist(), cfg, *a, talker=talker) - ref).max())
        worst = max(worst, d)
        print(os.path.basename(f), nm, d)
print("worst", worst)
sys.exit(worst > 1e-4)
