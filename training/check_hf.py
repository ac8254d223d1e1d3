"""Loads the checkpoint with transformers, runs generate(return_audio) and compares with the training-side sampler (greedy).

python check_hf.py CKPT_DIR [OUT_WAV_DIR] [--n 3]
"""

import sys, time, wave, os, json
import numpy as np, torch

if torch.version.cuda and not torch.cuda.is_available():
    torch.cuda.is_current_stream_capturing = lambda: False
from transformers import Qwen3OmniMoeForConditionalGeneration, AutoTokenizer
import transformers

transformers.logging.set_verbosity_error()
ck = sys.argv[1]
out = sys.argv[2] if len(sys.argv) > 2 else None
prompts = sys.argv[3:] or ["Say: The weather is lovely today.", "What is the capital of France?"]
m, info = Qwen3OmniMoeForConditionalGeneration.from_pretrained(ck, dtype=torch.float32, output_loading_info=True)
m.eval()
tok = AutoTokenizer.from_pretrained(ck)
print("missing", info["missing_keys"], "unexpected", info["unexpected_keys"], "mismatched", info["mismatched_keys"])
for p in prompts:
    for spk in m.config.talker_config.speaker_id:
        for greedy in (True, False):
            ids = tok(
                tok.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True),
                return_tensors="pt",
            ).input_ids
            t = time.time()
            torch.manual_seed(0)
            seq, wav = m.generate(
                input_ids=ids,
                speaker=spk,
                thinker_eos_token_id=m.config.im_end_token_id,
                thinker_do_sample=False,
                thinker_max_new_tokens=200,
                talker_do_sample=not greedy,
                talker_max_new_tokens=300,
            )
            dt = time.time() - t
            w = wav[0, 0].numpy()
            print(
                spk,
                "greedy" if greedy else "sampled",
                repr(tok.decode(seq[0, ids.shape[1] :])),
                f"{len(w) / 24000:.2f} s audio in {dt:.1f} s (python)",
                flush=True,
            )
            if out:
                os.makedirs(out, exist_ok=True)
                f = wave.open(f"{out}/{spk}_{'greedy' if greedy else 'sampled'}_{prompts.index(p)}.wav", "wb")
                f.setnchannels(1)
                f.setsampwidth(2)
                f.setframerate(24000)
                f.writeframes((np.clip(w, -1, 1) * 32767).astype("<i2").tobytes())
                f.close()
