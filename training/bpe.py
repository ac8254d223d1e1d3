"""The text tokenizer: byte-level BPE with the pre-tokenizer, the special tokens and the chat template of Qwen3-Omni."""

import json, os

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


def build_tokenizer(out, corpus, base_vocab=1000, processor_class="Qwen3OmniMoeProcessor"):
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
        corpus,
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
