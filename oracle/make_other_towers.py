"""A checkpoint with the layout of another tiny Qwen3-Omni, but with towers in which every size is a different one, and goldens of both towers and of whole answers to what they hear and see.
run:  OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1 v5/bin/python make_other_towers.py FROM OUT     then label_cases.py OUT/golden"""

import json, math, os, shutil, sys
import numpy as np, torch
from safetensors.torch import load_file, save_file

FROM, OUT = sys.argv[1:3]
SEED = int(os.environ.get("SEED", 170))
os.makedirs(OUT, exist_ok=True)
for name in os.listdir(FROM):
    if name not in ("golden", "model.safetensors", "config.json", "preprocessor_config.json"):
        shutil.copy(f"{FROM}/{name}", OUT)
cfg = json.load(open(f"{FROM}/config.json"))
t = cfg["thinker_config"]
H = t["text_config"]["hidden_size"]
audio = dict(
    num_mel_bins=80,
    d_model=36,
    encoder_layers=3,
    num_hidden_layers=3,
    encoder_attention_heads=3,
    encoder_ffn_dim=52,
    n_window=49,  # chunks of 98 frames: the reference counts 13 embeddings for a chunk, whatever its length
    n_window_infer=250,  # no multiple of a chunk: windows have two
    downsample_hidden_size=6,
    output_dim=H,
)
vision = dict(
    depth=5,
    hidden_size=40,
    intermediate_size=68,
    num_heads=5,
    patch_size=14,
    spatial_merge_size=3,
    out_hidden_size=H,
    num_position_embeddings=49,
    deepstack_visual_indexes=[0, 3],
)
t["audio_config"].update(audio)
t["vision_config"].update(vision)
for where in (t, cfg["talker_config"]):
    where["position_id_per_seconds"] = 25
cfg["talker_config"]["spatial_merge_size"] = vision["spatial_merge_size"]
json.dump(cfg, open(f"{OUT}/config.json", "w"), indent=1)
pre = json.load(open(f"{FROM}/../../qwen3_omni/preprocessor_config.json"))
pre.update(feature_size=80, patch_size=14, merge_size=3)
json.dump(pre, open(f"{OUT}/preprocessor_config.json", "w"), indent=1)

D, F, C = audio["d_model"], audio["encoder_ffn_dim"], audio["downsample_hidden_size"]
bins = audio["num_mel_bins"]
for _ in range(3):
    bins = (bins - 1) // 2 + 1
shapes = {f"conv2d{i}.weight": [C, 1 if i == 1 else C, 3, 3] for i in (1, 2, 3)}
shapes |= {f"conv2d{i}.bias": [C] for i in (1, 2, 3)} | {"conv_out.weight": [D, C * bins]}
for i in range(audio["encoder_layers"]):
    for p in ("q", "k", "v", "out"):
        shapes |= {f"layers.{i}.self_attn.{p}_proj.weight": [D, D], f"layers.{i}.self_attn.{p}_proj.bias": [D]}
    shapes |= {f"layers.{i}.fc1.weight": [F, D], f"layers.{i}.fc1.bias": [F]}
    shapes |= {f"layers.{i}.fc2.weight": [D, F], f"layers.{i}.fc2.bias": [D]}
    for n in ("final_layer_norm", "self_attn_layer_norm"):
        shapes |= {f"layers.{i}.{n}.weight": [D], f"layers.{i}.{n}.bias": [D]}
shapes |= {"ln_post.weight": [D], "ln_post.bias": [D]}
shapes |= {"proj1.weight": [D, D], "proj1.bias": [D], "proj2.weight": [H, D], "proj2.bias": [H]}
shapes = {f"thinker.audio_tower.{k}": v for k, v in shapes.items()}
W, I, P = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
M = W * vision["spatial_merge_size"] ** 2
seen = {"patch_embed.proj.weight": [W, 3, 2, P, P], "patch_embed.proj.bias": [W]}
seen |= {"pos_embed.weight": [vision["num_position_embeddings"], W]}
for i in range(vision["depth"]):
    b = f"blocks.{i}"
    seen |= {f"{b}.attn.qkv.weight": [3 * W, W], f"{b}.attn.qkv.bias": [3 * W]}
    seen |= {f"{b}.attn.proj.weight": [W, W], f"{b}.attn.proj.bias": [W]}
    seen |= {f"{b}.mlp.linear_fc1.weight": [I, W], f"{b}.mlp.linear_fc1.bias": [I]}
    seen |= {f"{b}.mlp.linear_fc2.weight": [W, I], f"{b}.mlp.linear_fc2.bias": [W]}
    seen |= {f"{b}.norm{n}.{p}": [W] for n in (1, 2) for p in ("weight", "bias")}
for merger in ["merger"] + [f"merger_list.{i}" for i in range(len(vision["deepstack_visual_indexes"]))]:
    seen |= {f"{merger}.ln_q.{p}": [W if merger == "merger" else M] for p in ("weight", "bias")}
    seen |= {f"{merger}.mlp.0.weight": [M, M], f"{merger}.mlp.0.bias": [M]}
    seen |= {f"{merger}.mlp.2.weight": [H, M], f"{merger}.mlp.2.bias": [H]}
shapes |= {f"thinker.visual.{k}": v for k, v in seen.items()}

g = torch.Generator().manual_seed(SEED)
sd = {k: v for k, v in load_file(f"{FROM}/model.safetensors").items() if "audio_tower" not in k and "visual" not in k}
for name in sorted(shapes):
    shape = shapes[name]
    x = torch.randn(shape, generator=g)
    if name.endswith("pos_embed.weight"):
        x = 0.5 * x
    elif len(shape) > 1:
        x = x / math.sqrt(math.prod(shape[1:]))
    elif ("norm" in name or "ln_" in name) and name.endswith("weight"):
        x = 1.0 + 0.15 * x
    else:
        x = 0.1 * x
    sd[name] = x.to(torch.bfloat16)
save_file(sd, f"{OUT}/model.safetensors", metadata={"format": "pt"})

sys.argv = [sys.argv[0], OUT, f"{OUT}/golden"]
import dump_qwen3_omni as D
from tinylib import Gold
from mmlib import speechlike
from transformers import WhisperFeatureExtractor

m = D.m
m.talker.config.audio_config = m.thinker.config.audio_config  # as dump_mm_e2e.py does
gen = torch.Generator().manual_seed(11)
row = 3 * 2 * P * P
grids = {"image": torch.tensor([[1, 6, 9]]), "video": torch.tensor([[2, 3, 6]])}
pixels = {k: torch.randn(int(v.prod()), row, generator=gen) * 0.6 for k, v in grids.items()}
gold, embeds = Gold(f"{OUT}/golden/vision_tower.safetensors"), {}
both = dict(two=(torch.cat(list(pixels.values())), torch.cat(list(grids.values()))))
with torch.no_grad():
    for name, (p, grid) in ({k: (pixels[k], grids[k]) for k in grids} | both).items():
        o = D.VT(p, grid_thw=grid)
        emb, deep = (o.pooler_output, o.deepstack_features) if not isinstance(o, tuple) else o
        if name != "two":
            gold.add(f"{name}.pixel_values", p)
        gold.add(f"{name}.grid_thw", grid)
        gold.add(f"{name}.embeds", emb)
        embeds[name] = emb.shape[0]
        for i, x in enumerate(deep):
            gold.add(f"{name}.deepstack.{i}", x)
gold.save()

fe = WhisperFeatureExtractor.from_pretrained(OUT)
wav = speechlike(3.37, 16000, 61, 150).astype(np.float32)
f = fe(wav, sampling_rate=16000, padding=True, truncation=False, return_attention_mask=True, return_tensors="pt")
feats, mask = f["input_features"], f["attention_mask"]
gold = Gold(f"{OUT}/golden/audio_tower.safetensors")
gold.add("pcm16k", wav)
gold.add("input_features", feats)
gold.add("feature_attention_mask", mask)
with torch.no_grad():
    n = mask.sum(-1)
    x = feats.permute(0, 2, 1)[mask.bool()].permute(1, 0)
    o = D.AT(x, feature_lens=n).last_hidden_state
    gold.add("audio_embeds", o)
    n2 = n - 137
    gold.add("batch2.lens", torch.cat([n, n2]))
    x2 = torch.cat([x, x[:, 40 : 40 + int(n2)]], 1)
    gold.add("batch2.audio_embeds", D.AT(x2, feature_lens=torch.cat([n, n2])).last_hidden_state)
gold.meta |= {"mel_frames": int(n), "audio_tokens": o.shape[0], "transformers": D.transformers.__version__}
gold.meta["batch2"] = "input = cat(x, x[:, 40:40+n2]) over time with x = the unpadded features, n2 = len(x) - 137"
gold.save()

pad = lambda kind, count, around: f"<|{around}_start|>" + f"<|{kind}_pad|>" * count + f"<|{around}_end|>"
turn = lambda text: f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
heard = dict(input_features=feats, feature_attention_mask=mask)
image = dict(pixel_values=pixels["image"], image_grid_thw=grids["image"])
video = dict(pixel_values_videos=pixels["video"], video_grid_thw=grids["video"])
video["video_second_per_grid"] = torch.tensor([0.76])
audio_text, image_text = pad("audio", o.shape[0], "audio"), pad("image", embeds["image"], "vision")
video_text = pad("video", embeds["video"], "vision")
text = turn(video_text + "One" + image_text + audio_text + "What is in the image?")
extra = heard | image | video
case = D.run_case("mm_video_image_audio_otto", None, text=text, speaker="Otto", extra=extra, n_text=6, n_frames=8)
for k in [k for k in case.t if ".prefill.hidden." in k and not k.endswith(".0")]:
    del case.t[k]  # as in dump_mm_e2e.py: the logits behind them are there
case.save()
