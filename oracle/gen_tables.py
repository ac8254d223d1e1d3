"""Tables of the tensors at the real and the tiny sizes.  run: python3 gen_tables.py REAL_DIR TINY_ROOT OUT.md   (REAL_DIR holds real_shapes.json from real_sizes.py)"""

import json, re, collections, sys

REAL, T, OUTF = (sys.argv[1:] + ["real", "tiny", "TABLES.part.md"][len(sys.argv) - 1 :])[:3]
T += "/"
real = json.load(open(REAL + "/real_shapes.json"))
tiny = {
    "omni_30b": "qwen3_omni",
    "tts_1.7B_base": None,
    "tts_1.7B_custom_voice": "qwen3_tts/custom_voice",
    "tts_0.6B_base": "qwen3_tts/base",
    "tts_tokenizer_12hz": "qwen3_tts/custom_voice/speech_tokenizer",
}


def pat(n):
    n = re.sub(r"\b(layers|experts|codec_embedding|lm_head|merger_list|blocks)\.\d+", r"\1.{i}", n)
    n = re.sub(r"res2net_block\.blocks\.\{i\}", "res2net_block.blocks.{j}", n)
    return re.sub(r"\bupsample\.\d+", "upsample.{i}", n)


def coll(sd, keep_idx=False):
    o = collections.OrderedDict()
    for n, s in sd.items():
        q = n if (n.startswith("encoder.encoder.") or n.startswith("speaker_encoder.blocks")) else pat(n)
        o.setdefault((q, tuple(s)), 0)
        o[(q, tuple(s))] += 1
    return o


out = [
    "\n## 12. Tensor tables (name pattern | real shape | tiny shape)\n",
    "`{i}` runs over layers/experts/groups. Experts: one tensor per expert in the checkpoint files (transformers 5.x fuses them on load). Linear weights are [out,in]; Conv1d [out,in/groups,k]; ConvTranspose1d [in,out,k]. Real = instantiated on the meta device with the real config values.\n",
]
for k, title in (
    ("omni_30b", "Qwen3-Omni-30B-A3B (bf16)"),
    ("tts_1.7B_custom_voice", "Qwen3-TTS-12Hz-1.7B CustomVoice/VoiceDesign (bf16)"),
    ("tts_0.6B_base", "Qwen3-TTS-12Hz-0.6B Base (bf16) - no small_to_mtp_projection; speaker encoder"),
    ("tts_tokenizer_12hz", "speech_tokenizer (f32, 12 Hz)"),
):
    r = coll(real[k])
    tj = json.load(open(T + tiny[k] + "/tensor_shapes.json"))
    t = {}
    for (q, s), c in coll(tj).items():
        t.setdefault(q, []).append(s)
    out.append(f"\n### {title}\n\n| tensor | real | tiny |\n|---|---|---|")
    rr = collections.OrderedDict()
    for (q, s), c in r.items():
        rr.setdefault(q, []).append(s)
    for q, ss in rr.items():
        f = lambda l: " / ".join(str(list(s)).replace(" ", "") for s in l)
        out.append(f"| `{q}` | {f(ss)} | {f(t.get(q, [])) or '-'} |")
open(OUTF, "w").write("\n".join(out) + "\n")
print(len(out))
