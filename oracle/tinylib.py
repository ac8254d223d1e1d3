"""Shared helpers for the tiny-checkpoint builders: tokenizer, weight init, golden writer."""

import json, math, os
import numpy as np, torch

torch.cuda.is_current_stream_capturing = lambda: False  # the stub CUDA libraries (make_stubs.py) cannot answer this one
from safetensors.torch import save_file

CORPUS = [
    "system user assistant",
    "You are a helpful assistant.",
    "Hello, how are you today?",
    "The quick brown fox jumps over the lazy dog.",
    "Please read the following sentence aloud with a calm voice.",
    "Speak slowly and clearly, in a warm tone.",
    "I am a large language model created by Alibaba Cloud.",
    "What do you hear in this audio?",
    "What is in the image? Describe the video.",
    "One two three four five six seven.",
    "你好，我是通义千问。",
    "今天天气怎么样？",
    "请用温柔的声音朗读这句话。",
    "Good morning! It is nice to meet you.",
    "def main(): print('hello world')",
    "1234567890",
    "Reference text for voice cloning.",
] + ["system\nuser\nassistant\n"] * 8

# order as in the real vocabulary (151643..151675); 151659-151668 are fim/repo/tool tokens there
SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
]

PAT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}{%- else -%}{%- for c in message.content -%}"
    "{%- if c.type == 'image' or 'image' in c or 'image_url' in c -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif c.type == 'audio' or 'audio' in c or 'audio_url' in c -%}{{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}"
    "{%- elif c.type == 'video' or 'video' in c -%}{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}"
    "{%- elif 'text' in c -%}{{- c.text -}}{%- endif -%}{%- endfor -%}{%- endif -%}{{- '<|im_end|>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


def build_tokenizer(out, base_vocab=415, processor_class="Qwen3OmniMoeProcessor"):
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers, normalizers, Regex, processors

    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PAT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=base_vocab,
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            min_frequency=2,
        ),
    )
    tok.add_special_tokens(SPECIALS)
    ids = {s: tok.token_to_id(s) for s in SPECIALS}
    for w in ("system", "user", "assistant"):
        e = tok.encode(w).ids
        assert len(e) == 1, (w, e)
        ids[w] = e[0]
    nl = tok.encode("\n").ids
    assert len(nl) == 1
    ids["\n"] = nl[0]
    assert len(tok.encode("<|im_start|>assistant\n").ids) == 3
    os.makedirs(out, exist_ok=True)
    tok.save(f"{out}/tokenizer.json")
    m = json.loads(tok.to_str())["model"]
    json.dump(m["vocab"], open(f"{out}/vocab.json", "w"), ensure_ascii=False)
    with open(f"{out}/merges.txt", "w") as f:
        for a in m["merges"]:
            f.write((" ".join(a) if isinstance(a, list) else a) + "\n")
    added = {
        str(ids[s]): {
            "content": s,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": not s.startswith(("<tool", "</tool", "<think", "</think", "<|fim", "<|repo", "<|file")),
        }
        for s in SPECIALS
    }
    json.dump(
        {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": added,
            "additional_special_tokens": [
                "<|im_start|>",
                "<|im_end|>",
                "<|vision_start|>",
                "<|vision_end|>",
                "<|image_pad|>",
                "<|video_pad|>",
                "<|audio_start|>",
                "<|audio_end|>",
                "<|audio_pad|>",
                "<tts_pad>",
                "<tts_text_bos>",
                "<tts_text_eod>",
                "<tts_text_bos_single>",
            ],
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "unk_token": None,
            "errors": "replace",
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": False,
            "model_max_length": 131072,
            "tokenizer_class": "Qwen2Tokenizer",
            "processor_class": processor_class,
            "chat_template": CHAT_TEMPLATE,
            "image_token": "<|image_pad|>",
            "audio_token": "<|audio_pad|>",
            "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        },
        open(f"{out}/tokenizer_config.json", "w"),
        indent=1,
        ensure_ascii=False,
    )
    json.dump({"chat_template": CHAT_TEMPLATE}, open(f"{out}/chat_template.json", "w"), indent=1)
    return tok, ids


@torch.no_grad()
def init_weights(model, seed, rules):
    """Deterministic init, per parameter in sorted name order. rules: list of (predicate(name, p), fn(name, p, gen)->tensor)."""
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters(), key=lambda x: x[0]):
        for pred, fn in rules:
            if pred(name, p):
                v = fn(name, p, g)
                break
        else:
            if p.dim() == 1:
                v = (
                    (1.0 + 0.15 * torch.randn(p.shape, generator=g))
                    if ("norm" in name.lower() or "ln_" in name) and name.endswith("weight")
                    else 0.1 * torch.randn(p.shape, generator=g)
                )
            else:
                fan_in = p[0].numel()
                v = torch.randn(p.shape, generator=g) / math.sqrt(fan_in)
        p.copy_(v.to(torch.bfloat16).to(p.dtype))  # bf16-representable, so a bf16 checkpoint is lossless


def R(sub, scale=None, mean=0.0, std=None):
    """rule: names containing sub -> N(mean,std) or N(0, scale/sqrt(fan_in))."""

    def fn(n, p, g):
        s = std if std is not None else scale / math.sqrt(p[0].numel())
        return mean + s * torch.randn(p.shape, generator=g)

    return (lambda n, p: sub in n, fn)


class Gold:
    def __init__(self, path):
        self.path, self.t, self.meta = path, {}, {}

    def add(self, name, x):
        if not torch.is_tensor(x):
            x = torch.as_tensor(x)
        x = x.detach().cpu()
        if x.dtype in (torch.int64, torch.bool):
            x = x.to(torch.int32)
        assert name not in self.t, name
        if x.is_floating_point():
            assert torch.isfinite(x).all(), name
        self.t[name] = x.contiguous().clone()

    def save(self):
        save_file(self.t, self.path)
        json.dump(
            {
                "tensors": {
                    k: {
                        "shape": list(v.shape),
                        "dtype": str(v.dtype).replace("torch.", ""),
                        **(
                            {"absmax": float(v.abs().max()), "rms": float(v.float().pow(2).mean().sqrt())}
                            if v.is_floating_point() and v.numel()
                            else {}
                        ),
                    }
                    for k, v in self.t.items()
                },
                "meta": self.meta,
            },
            open(self.path.replace(".safetensors", ".json"), "w"),
            indent=1,
            ensure_ascii=False,
        )
        print("wrote", self.path, round(os.path.getsize(self.path) / 1e6, 2), "MB", len(self.t), "tensors")


def margin(logits):
    t = logits.float().topk(2, -1).values
    return t[..., 0] - t[..., 1]


def save_bf16(model, out, shard_name="model.safetensors"):
    sd = {k: v.detach().to(torch.bfloat16).contiguous().clone() for k, v in model.state_dict().items()}
    save_file(sd, f"{out}/{shard_name}", metadata={"format": "pt"})
    return sd
