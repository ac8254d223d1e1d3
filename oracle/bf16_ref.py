"""How far a bf16 run of the reference is from the f32 goldens (teacher-forced), to set tolerances.
run: v5/bin/python bf16_ref.py [ckpt_dir]"""

import torch, sys
import tinylib
from safetensors.torch import load_file
import transformers

transformers.logging.set_verbosity_error()
from transformers import Qwen3OmniMoeForConditionalGeneration

CK = sys.argv[1] if len(sys.argv) > 1 else "tiny/qwen3_omni"
m = Qwen3OmniMoeForConditionalGeneration.from_pretrained(CK, dtype=torch.bfloat16, attn_implementation="eager").eval()
snr = lambda a, b: round(float(10 * torch.log10(b.float().pow(2).mean() / (a.float() - b.float()).pow(2).mean())), 1)
g = load_file(CK + "/golden/text_ethan.safetensors")
c = load_file(CK + "/golden/code2wav.safetensors")
with torch.no_grad():
    print("code2wav bf16 vs f32 SNR dB", snr(m.code2wav(c["codes"].long()), c["wav.full"]))
    o = m.thinker(
        input_ids=g["input_ids"].long(), attention_mask=torch.ones_like(g["input_ids"]), output_hidden_states=True
    )
    print(
        "thinker logits SNR dB",
        snr(o.logits, g["thinker.prefill.logits"]),
        "argmax agree",
        float((o.logits.argmax(-1) == g["thinker.prefill.logits"].argmax(-1)).float().mean()),
    )
    e = torch.cat([g["talker.prefill.inputs_embeds"], g["talker.step_inputs_embeds"]], 1).bfloat16()
    o = m.talker.model(inputs_embeds=e, attention_mask=torch.ones(e.shape[:2]), use_cache=False)
    P = g["talker.prefill.inputs_embeds"].shape[1]
    lg = m.talker.codec_head(o.last_hidden_state)[:, P - 1 :]
    print(
        "talker step logits SNR dB (teacher forced)",
        snr(lg, g["talker.step_logits"]),
        "argmax agree",
        float((lg.argmax(-1) == g["talker.step_logits"].argmax(-1)).float().mean()),
    )
