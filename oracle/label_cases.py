"""Adds to every golden manifest which kind of case it is and which checkpoint folder it belongs to, so that one program can run any folder of goldens.
usage: label_cases.py GOLDEN_DIR [GOLDEN_DIR ...]   (last step of regeneration; idempotent)

case = {"kind": omni_generate | tts_generate | code2wav | decoder12hz | audio_tower | vision_tower | tts_frontend | frontend_audio | frontend_image | frontend_video | frontend_chat | frontend_table,
        "checkpoint": folder beside golden/ ("." = the folder that holds golden/), "config_overrides": {field of config.json: value}}"""

import glob, json, os, sys


def label(path):
    name, tts = (
        os.path.basename(path)[:-5],
        os.path.exists(os.path.join(os.path.dirname(path), "..", "base")) or "tts" in path,
    )
    if name.startswith("frontend_"):
        return dict(
            kind="_".join(name.split("_")[:2]), checkpoint="."
        )  # frontend_audio | image | video | chat | table: media and expected inputs, no weights
    if name in ("code2wav", "audio_tower", "vision_tower"):
        return dict(kind=name, checkpoint=".")
    if name == "decoder12hz":
        return dict(kind=name, checkpoint="custom_voice")
    if name == "base_frontend":
        return dict(kind="tts_frontend", checkpoint="base")
    if not tts:
        return dict(kind="omni_generate", checkpoint=".")
    case = dict(kind="tts_generate", checkpoint="base" if name.startswith("base_") else "custom_voice")
    if name.startswith("voice_design"):
        case["config_overrides"] = {"tts_model_type": "voice_design"}
    if name.startswith("cv_0b6"):
        case["config_overrides"] = {"tts_model_size": "0b6"}
    return case


for d in sys.argv[1:]:
    for p in sorted(glob.glob(os.path.join(d, "*.json"))):
        m = json.load(open(p))
        m = {"case": label(p), **{k: v for k, v in m.items() if k != "case"}}
        json.dump(m, open(p, "w"), indent=1)
        print(p, m["case"])
