"""Greedy goldens of the default voice from transformers: prompt, written or spoken -> thinker tokens -> codes -> waveform.

python goldens.py CHECKPOINT OUT [--frames 300]
"""

import json, os, sys, wave
import numpy as np, torch

if torch.version.cuda and not torch.cuda.is_available():
    torch.cuda.is_current_stream_capturing = lambda: False
from safetensors.torch import save_file
from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration, WhisperFeatureExtractor
import transformers

transformers.logging.set_verbosity_error()
LIMIT = int(sys.argv[4]) if len(sys.argv) > 4 else 300
ck, out = sys.argv[1:3]
os.makedirs(out, exist_ok=True)
m = Qwen3OmniMoeForConditionalGeneration.from_pretrained(ck, dtype=torch.float32, attn_implementation="eager").eval()
tok = AutoTokenizer.from_pretrained(ck)
seen = {}
c2w, pick = m.code2wav, m.code_predictor_greedy if hasattr(m, "code_predictor_greedy") else None
orig = c2w.chunked_decode


def spy(codes, *a, **k):
    seen["codes"] = codes.clone()
    return orig(codes, *a, **k)


c2w.chunked_decode = spy
# the reference's predictor always samples (top-k 50, top-p 0.8): make it greedy for a deterministic golden
cp = m.talker.code_predictor
gen = cp.generate


def greedy(*a, **k):
    k.update(do_sample=False)
    [k.pop(x, None) for x in ("top_k", "top_p", "temperature")]
    return gen(*a, **k)


cp.generate = greedy
P = [
    "Say: The weather is lovely today.",
    "What is the capital of France?",
    "Say: Please bring two cups of coffee to the table.",
    "Say: I am made of actors, and I can talk.",
]
# Spoken ones: recordings at 16 kHz, each with what is written behind it.
ASKED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/data/asked")
HEARD = [("capital.wav", ""), ("say.wav", ""), ("count.wav", "Transcribe the audio into text.")]


def run(name, text, speaker, heard):
    """One golden; heard: what else generate() takes"""
    ids = tok(text, return_tensors="pt").input_ids
    with torch.no_grad():
        seq, wav = m.generate(
            input_ids=ids,
            speaker=speaker,
            thinker_eos_token_id=m.config.im_end_token_id,
            thinker_do_sample=False,
            thinker_max_new_tokens=200,
            talker_do_sample=False,
            talker_max_new_tokens=LIMIT,
            **heard,
        )
    T = {
        "input_ids": ids.int(),
        "thinker.sequences": seq.int(),
        "codes": seen["codes"].int().contiguous(),
        "wav": wav.float().contiguous(),
        **{f"in.{k}": v.int() if v.dtype == torch.int64 else v.contiguous() for k, v in heard.items()},
    }
    save_file(T, f"{out}/{name}.safetensors")
    meta = dict(
        prompt=text,
        speaker=speaker,
        n_text=200,
        n_frames_limit=LIMIT,
        thinker_eos=m.config.im_end_token_id,
        talker_eos=m.config.talker_config.codec_eos_token_id,
        repetition_penalty=1.05,
        generated_text=tok.decode(seq[0, ids.shape[1] :]),
        wav_samples=wav.shape[-1],
        transformers=transformers.__version__,
    )
    json.dump(
        dict(
            case=dict(kind="omni_generate", checkpoint="checkpoint"),
            tensors={k: dict(shape=list(v.shape), dtype=str(v.dtype).split(".")[-1]) for k, v in T.items()},
            meta=meta,
        ),
        open(f"{out}/{name}.json", "w"),
        indent=1,
    )
    print(name, meta["generated_text"], list(T["codes"].shape), wav.shape[-1], flush=True)


for i, p in enumerate(P):
    for spk in m.config.talker_config.speaker_id:
        text = tok.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
        run(f"voice_{spk}_{i}", text, spk, {})
if m.config.thinker_config.audio_config.d_model > 32:  # trained ears
    features = WhisperFeatureExtractor.from_pretrained(ck)
    for i, (name, ask) in enumerate(HEARD):
        with wave.open(f"{ASKED}/{name}") as f:
            assert f.getframerate() == 16000 and f.getnchannels() == 1, name
            samples = np.frombuffer(f.readframes(f.getnframes()), np.int16).astype(np.float32) / 32768
        x = features(
            samples,
            sampling_rate=16000,
            padding=True,
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        frames = int(x.attention_mask.sum())
        pads = "<|audio_pad|>" * (13 * (frames // 100) + -(-(frames % 100) // 8))
        text = f"<|im_start|>user\n<|audio_start|>{pads}<|audio_end|>{ask}<|im_end|>\n<|im_start|>assistant\n"
        heard = {"input_features": x.input_features, "feature_attention_mask": x.attention_mask}
        run(f"heard_{'heart' if i % 2 == 0 else 'alto'}_{i}", text, "heart" if i % 2 == 0 else "alto", heard)
