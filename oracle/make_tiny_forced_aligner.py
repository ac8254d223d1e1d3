"""Build a tiny random checkpoint in the layout of Qwen3-ForcedAligner-0.6B, and its goldens, with qwen-asr 0.0.6.
run:  OMP_NUM_THREADS=2 v4/bin/python make_tiny_forced_aligner.py [out_dir]   (v4 with `pip install --no-deps qwen-asr==0.0.6`;
default tiny/qwen3_forced_aligner; goldens go to out_dir/golden)

Two differences from a plain run of the package. The Japanese tokenizer (nagisa) is not loaded: no case is Japanese or
Korean. And the audio tower attends inside its windows, as the package does with flash attention 2 and under vLLM: on
other backends its transformers code builds the mask (_prepare_attention_mask) and forgets to give it to the layers."""

import json, os, sys, types
import numpy as np, torch

sys.modules["nagisa"] = types.ModuleType("nagisa")
import tinylib
from tinylib import *

tinylib.SPECIALS.append("<timestamp>")
from qwen_asr.core.transformers_backend import (
    Qwen3ASRConfig,
    Qwen3ASRForConditionalGeneration,
    Qwen3ASRProcessor,
)
from qwen_asr.inference.qwen3_forced_aligner import Qwen3ForceAlignProcessor, Qwen3ForcedAligner
from transformers import Qwen2TokenizerFast, WhisperFeatureExtractor

OUT = sys.argv[1] if len(sys.argv) > 1 else "tiny/qwen3_forced_aligner"
SEED = int(os.environ.get("SEED", 2468))
os.makedirs(f"{OUT}/golden", exist_ok=True)
tok, ids = build_tokenizer(OUT, processor_class="Qwen3ASRProcessor")
os.remove(f"{OUT}/chat_template.json")
path = f"{OUT}/tokenizer_config.json"
settings = json.load(open(path))
del settings["chat_template"]
named = [k for k in settings if k.endswith("_token") and k.split("_")[0] in ("audio", "image", "video", "vision")]
settings["extra_special_tokens"] = {k: settings.pop(k) for k in named}
settings["additional_special_tokens"].append("<timestamp>")
json.dump(settings, open(path, "w"), indent=1, ensure_ascii=False)
V, H, CLASSES, SEGMENT = 512, 64, 64, 80  # real: 152064, 1024, 5000, 80 ms
assert max(ids.values()) < V
audio = dict(
    num_mel_bins=128,
    encoder_layers=2,
    encoder_attention_heads=4,
    encoder_ffn_dim=96,
    d_model=48,
    activation_function="gelu",
    max_source_positions=1500,
    n_window=50,
    n_window_infer=200,  # real: 800
    conv_chunksize=500,
    downsample_hidden_size=8,
    output_dim=H,
    scale_embedding=False,
)
text = dict(
    vocab_size=V,
    hidden_size=H,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    hidden_act="silu",
    max_position_embeddings=65536,
    rms_norm_eps=1e-6,
    rope_theta=1000000,
    rope_scaling={
        "rope_type": "default",
        "type": "default",
        "interleaved": True,
        "mrope_interleaved": True,
        "mrope_section": [6, 5, 5],
    },
    attention_bias=False,
    tie_word_embeddings=False,
)
cfg = Qwen3ASRConfig(
    thinker_config=dict(
        model_type="qwen3_forced_aligner",
        audio_config=audio,
        text_config=text,
        audio_token_id=ids["<|audio_pad|>"],
        audio_start_token_id=ids["<|audio_start|>"],
        audio_end_token_id=ids["<|audio_end|>"],
        user_token_id=ids["user"],
        classify_num=CLASSES,
    ),
    timestamp_token_id=ids["<timestamp>"],
    timestamp_segment_time=SEGMENT,
)
cfg.architectures = ["Qwen3ASRForConditionalGeneration"]
# The class asks for the type under its own name, which the config's class shadows with a class attribute.
cfg.thinker_config.model_type = "qwen3_forced_aligner"
m = Qwen3ASRForConditionalGeneration._from_config(cfg, attn_implementation="eager").eval().float()
assert m.thinker.lm_head.weight.shape == (CLASSES, H), m.thinker.lm_head.weight.shape
# Sharp attention: else every timestamp sees the same average and has the same logits.
mixing = [R("embed_tokens", std=1.0), R("q_norm.weight", mean=3.0, std=1.0), R("k_norm.weight", mean=3.0, std=1.0), R("o_proj.weight", scale=2.0), R("proj2.weight", scale=2.0)]
init_weights(m, SEED, mixing + [R("lm_head", scale=4.0)])
sd = save_bf16(m, OUT)
d = cfg.to_dict()
d["thinker_config"]["model_type"] = "qwen3_forced_aligner"
d["dtype"] = "bfloat16"
d["transformers_version"] = "4.57.3"
json.dump(d, open(f"{OUT}/config.json", "w"), indent=1)
json.dump(
    {
        "chunk_length": 30,
        "dither": 0.0,
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 128,
        "hop_length": 160,
        "n_fft": 400,
        "n_samples": 480000,
        "nb_max_frames": 3000,
        "padding_side": "right",
        "padding_value": 0.0,
        "processor_class": "Qwen3ASRProcessor",
        "return_attention_mask": True,
        "sampling_rate": 16000,
    },
    open(f"{OUT}/preprocessor_config.json", "w"),
    indent=1,
)

tower = m.thinker.audio_tower


def windowed(layer):
    inner = layer.forward
    layer.forward = lambda x, cu_seqlens, **kw: inner(
        x, cu_seqlens, attention_mask=tower._prepare_attention_mask(x, cu_seqlens), **kw
    )


for layer in tower.layers:
    windowed(layer)
tokenizer = Qwen2TokenizerFast.from_pretrained(OUT)
for name in ("audio_token", "audio_bos_token", "audio_eos_token"):
    assert getattr(tokenizer, name), name
processor = Qwen3ASRProcessor(WhisperFeatureExtractor.from_pretrained(OUT), tokenizer)
aligner = Qwen3ForcedAligner(m, processor, Qwen3ForceAlignProcessor())


def clip(seconds, seed):
    """Glides in noise, bursts of a third of a second."""
    n = int(seconds * 16000)
    g = np.random.default_rng(seed)
    t = np.arange(n) / 16000
    tone = sum(np.sin(2 * np.pi * (110 * k * t + 40 * k * t * t) + k) / k for k in range(1, 9))
    burst = (np.sin(2 * np.pi * 1.5 * t + seed) > -0.3).astype(np.float64)
    return (0.12 * tone * burst + 0.02 * g.standard_normal(n)).astype(np.float32)


CASES = {
    "english": (3.3, "Hello, how are you today? It's 12 o'clock -- \"the quick\" brown-fox jumps.", "English"),
    "chinese": (2.005, "你好，我是通义千问。今天天气怎么样？", "Chinese"),
    "mixed": (1.0, "请用 AI 朗读 this句话 v2.0！", "Chinese"),
    "german": (5.17, "Grüß Gott, schöne Straße… 3 Äpfel über’m l'été naïve Ωmega ½ क्या", "German"),
    "one_word": (0.21, "Hi!", "English"),
}
for name, (seconds, words, language) in CASES.items():
    pcm = clip(seconds, len(name))
    g = Gold(f"{OUT}/golden/{name}.safetensors")
    got = {}
    hooks = [
        tower.register_forward_hook(lambda _m, _i, o: got.update(tower=o.last_hidden_state)),
        tower.register_forward_pre_hook(lambda _m, i: got.update(features=i[0])),
        m.thinker.lm_head.register_forward_hook(lambda _m, _i, o: got.update(logits=o[0])),
        m.thinker.model.register_forward_pre_hook(lambda _m, _a, kw: got.update(x=kw["inputs_embeds"]), with_kwargs=True),
    ]
    result = aligner.align((pcm, 16000), words, language)[0]
    for hook in hooks:
        hook.remove()
    units, prompt = aligner.aligner_processor.encode_timestamp(words, language)
    inputs = processor(text=[prompt], audio=[pcm], return_tensors="pt", padding=True)
    at = inputs["input_ids"][0] == ids["<timestamp>"]
    logits = got["logits"][at]
    g.add("pcm", torch.from_numpy(pcm))
    if name in ("english", "one_word"):
        g.add("features", got["features"])
    g.add("input_ids", inputs["input_ids"][0])
    g.add("tower", got["tower"])
    g.add("logits", logits)
    g.add("classes", logits.argmax(-1))
    g.meta.update(
        text=words,
        language=language,
        units=units,
        seconds=[[item.start_time, item.end_time] for item in result],
        min_margin=float(margin(logits).min()),
        versions={"qwen_asr": "0.0.6", "transformers": "4.57.3", "torch": torch.__version__},
    )
    assert [item.text for item in result] == units
    g.save()
    path = g.path.replace(".safetensors", ".json")
    manifest = json.load(open(path))
    json.dump(
        {"case": {"kind": "forced_aligner", "checkpoint": "."}, **manifest}, open(path, "w"), indent=1, ensure_ascii=False
    )
    print(name, units, g.meta["seconds"], g.meta["min_margin"], list(logits.argmax(-1)))

# The repair of times, by itself: rising runs with what breaks them.
fix = aligner.aligner_processor.fix_timestamp
rng = np.random.default_rng(SEED)
lists = [[80, 4000, 160, 240], [5, 4, 3, 2, 1], [0, 0, 0], [500, 80, 160], [80, 160, 240, 320, 0, 0, 0, 800, 880], [7]]
for n in (2, 5, 8, 13, 40):
    for _ in range(6):
        base = np.sort(rng.integers(0, 60, n)) * SEGMENT
        wrong = rng.random(n) < 0.35
        lists.append([int(x) for x in np.where(wrong, rng.integers(0, 60, n) * SEGMENT, base)])
json.dump(
    [{"given": x, "repaired": fix(np.array(x, dtype=np.float32))} for x in lists],
    open(f"{OUT}/golden/repair.json", "w"),
)
