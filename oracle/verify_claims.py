"""Check the SPEC's formulas against the goldens, from raw safetensors weights (no transformers model code).
run: v4/bin/python verify_claims.py [root holding qwen3_omni/ and qwen3_tts/]   (needs only torch + safetensors)"""

import json, sys, torch, torch.nn.functional as F, math
from safetensors.torch import load_file

T = sys.argv[1] if len(sys.argv) > 1 else "tiny"
f32 = lambda p: {k: v.float() if v.is_floating_point() else v for k, v in load_file(p).items()}


def close(n, a, b, tol=2e-4):
    d = float((a.reshape(-1) - b.reshape(-1)).abs().max())
    print(("ok  " if d < tol else "FAIL"), n, f"{d:.2e}")
    return d < tol


W = f32(f"{T}/qwen3_omni/model.safetensors")
C = json.load(open(f"{T}/qwen3_omni/config.json"))
tc = C["talker_config"]
G = tc["num_code_groups"]


def proj(x, p):
    return F.linear(
        F.silu(F.linear(x, W[p + ".linear_fc1.weight"], W[p + ".linear_fc1.bias"])),
        W[p + ".linear_fc2.weight"],
        W[p + ".linear_fc2.bias"],
    )


def rms(x, w, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def step_checks(g, pre, c0e, cpe, codes, trailing, pad, seq):
    n = codes.shape[0]
    close(
        pre + " predictor input row0 = talker last hidden AFTER final norm",
        g["code_predictor.inputs"].reshape(-1, 2, g["code_predictor.inputs"].shape[-1])[:n, 0],
        g["talker.step_last_hidden"][0, :n],
    )
    close(
        pre + " predictor input row1 = talker codec_embedding[c0]",
        g["code_predictor.inputs"].reshape(-1, 2, c0e.shape[1])[:n, 1],
        c0e[codes[:, 0].long()],
    )
    e = c0e[codes[:, 0].long()] + sum(cpe[i][codes[:, i + 1].long()] for i in range(codes.shape[1] - 1))
    t = torch.stack([trailing[i] if i < trailing.shape[0] else pad for i in range(n)])
    close(
        pre + " next talker input = sum of G embeddings + trailing[step] or pad",
        e + t,
        g["talker.step_inputs_embeds"][0, :n],
    )
    lg = g["code_predictor.logits"].reshape(-1, codes.shape[1] - 1, g["code_predictor.logits"].shape[-1])[:n]
    assert torch.equal(lg.argmax(-1).int(), codes[:, 1:].int())
    print("ok   predictor codes = plain argmax")


for case in ("text_ethan", "text_ethan_eos", "text_ethan_thinker_eos", "audio_ethan", "image_ethan", "video_ethan"):
    g = load_file(f"{T}/qwen3_omni/golden/{case}.safetensors")
    meta = json.load(open(f"{T}/qwen3_omni/golden/{case}.json"))["meta"]
    ids = g["input_ids"][0].long()
    seq = g["thinker.sequences"][0].long()
    emb, acc = g["thinker.hidden0.all"][0], g["thinker.accept_hidden.all"][0]
    assert emb.shape[0] == seq.shape[0] - 1  # the last sampled token is never embedded
    E = W["thinker.model.embed_tokens.weight"]
    tp = lambda x: proj(x, "talker.text_projection")
    bos, eos, pad = (tp(E[C[k]]) for k in ("tts_bos_token_id", "tts_eos_token_id", "tts_pad_token_id"))
    starts = [i for i in range(len(ids)) if ids[i] == C["im_start_token_id"]] + [len(seq)]
    parts, pids = [], []
    mm = (
        (seq == C["thinker_config"]["audio_token_id"])
        | (seq == C["thinker_config"]["image_token_id"])
        | (seq == C["thinker_config"]["video_token_id"])
    )
    ce = W["talker.model.codec_embedding.weight"]
    for a, b in zip(starts[:-1], starts[1:]):
        role = int(ids[a + 1])
        if role == C["user_token_id"]:
            x = tp(emb[a:b])
            x[mm[a:b]] = proj(acc[a:b][mm[a:b]], "talker.hidden_projection")
            parts.append(x)
            pids += seq[a:b].tolist()
        elif role == C["assistant_token_id"] and b == starts[-1]:
            h = tp(emb[a:])
            spk = tc["speaker_id"][meta["speaker"].lower()]
            txt = torch.cat([h[:3], pad[None].expand(4, -1), bos[None], h[3:4]])
            cod = torch.cat(
                [
                    torch.zeros(3, h.shape[1]),
                    ce[
                        [
                            tc["codec_nothink_id"],
                            tc["codec_think_bos_id"],
                            tc["codec_think_eos_id"],
                            spk,
                            tc["codec_pad_id"],
                            tc["codec_bos_id"],
                        ]
                    ],
                ]
            )
            parts.append(txt + cod)
            trailing = torch.cat([h[4:], eos[None]])
            pids += [C["tts_pad_token_id"]] * 9
    print("==", case)
    close("talker prefill embeds", torch.cat(parts), g["talker.prefill.inputs_embeds"][0])
    assert pids == g["talker.prefill.input_ids"][0].tolist()
    close("trailing", trailing, g["talker.trailing_text_hidden"][0])
    codes = g["codes"][0].T
    step_checks(
        g,
        "",
        ce,
        [W[f"talker.code_predictor.model.codec_embedding.{i}.weight"] for i in range(G - 1)],
        codes,
        trailing,
        pad,
        seq,
    )
    n_tok = g["talker.codec0_sequence"].shape[1]
    assert codes.shape[0] == n_tok - 1
    print("ok   frames = codec-0 tokens - 1:", codes.shape[0])
# ---- TTS ----
for case, kind in (
    ("cv_streaming_auto_vivian", "custom_voice"),
    ("cv_nonstreaming_english_ryan_instruct", "custom_voice"),
    ("voice_design_english", "custom_voice"),
    ("base_xvector_streaming_auto", "base"),
    ("base_xvector_nonstreaming_english", "base"),
    ("base_icl_streaming_english", "base"),
    ("base_icl_streaming_shorttext", "base"),
):
    W = f32(f"{T}/qwen3_tts/{kind}/model.safetensors")
    C = json.load(open(f"{T}/qwen3_tts/{kind}/config.json"))
    tc = C["talker_config"]
    g = load_file(f"{T}/qwen3_tts/golden/{case}.safetensors")
    m = json.load(open(f"{T}/qwen3_tts/golden/{case}.json"))["meta"]
    ids = g["input_ids"][0].long()
    TE = W["talker.model.text_embedding.weight"]
    tp = lambda i: proj(TE[i], "talker.text_projection")
    ce = W["talker.model.codec_embedding.weight"]
    G = tc["num_code_groups"]
    cpe = [W[f"talker.code_predictor.model.codec_embedding.{i}.weight"] for i in range(G - 1)]
    bos, eos, pad = (tp(torch.tensor([C[k]])) for k in ("tts_bos_token_id", "tts_eos_token_id", "tts_pad_token_id"))
    lang = m["languages"][0].lower()
    spk = (m["speakers"] or [None])[0]
    lid = None if lang == "auto" else tc["codec_language_id"][lang]
    if lang in ("chinese", "auto") and spk and tc["spk_is_dialect"][spk.lower()]:
        lid = tc["codec_language_id"][tc["spk_is_dialect"][spk.lower()]]
    pre = (
        [tc["codec_nothink_id"], tc["codec_think_bos_id"], tc["codec_think_eos_id"]]
        if lid is None
        else [tc["codec_think_id"], tc["codec_think_bos_id"], lid, tc["codec_think_eos_id"]]
    )
    cod = [ce[pre]]
    if "ref_spk_embedding" in g:
        cod.append(g["ref_spk_embedding"][None])
    elif spk:
        cod.append(ce[[tc["spk_id"][spk.lower()]]])
    cod = torch.cat(cod + [ce[[tc["codec_pad_id"], tc["codec_bos_id"]]]])
    n = cod.shape[0]
    parts = [tp(g["instruct_ids"][0].long())] if "instruct_ids" in g else []
    parts += [tp(ids[:3]), torch.cat([pad.expand(n - 2, -1), bos]) + cod[:-1]]
    cp_, cb = ce[[tc["codec_pad_id"]]], ce[[tc["codec_bos_id"]]]
    if "ref_code" in g:
        rc = g["ref_code"].long()
        tx = torch.cat([tp(torch.cat([g["ref_ids"][0].long()[3:-2], ids[3:-5]])), eos])
        cc = torch.cat([cb, ce[rc[:, 0]] + sum(cpe[i][rc[:, i + 1]] for i in range(G - 1))])
        if m["non_streaming_mode"]:
            parts += [tx + cp_, cc + pad]
            trailing = pad
        elif len(tx) > len(cc):
            parts.append(tx[: len(cc)] + cc)
            trailing = tx[len(cc) :]
        else:
            parts.append(torch.cat([tx, pad.expand(len(cc) - len(tx), -1)]) + cc)
            trailing = pad
    elif m["non_streaming_mode"]:
        parts += [torch.cat([tp(ids[3:-5]), eos]) + cp_, pad + cb]
        trailing = pad
    else:
        parts.append(tp(ids[3:4]) + cb)
        trailing = torch.cat([tp(ids[4:-5]), eos])
    print("==", case)
    close("talker prefill embeds", torch.cat(parts), g["talker.prefill.inputs_embeds"][0])
    close("trailing", trailing, g["talker.trailing_text_hidden"][0])
    step_checks(g, "", ce, cpe, g["codes"], trailing, pad[0], None)


# ---- code2wav from raw weights: omni (two-sided trim) and tts (right trim) ----
def rope(T_, d, theta=1e4):
    f = torch.outer(torch.arange(T_).float(), theta ** (-torch.arange(0, d, 2).float() / d))
    e = torch.cat([f, f], -1)
    return e.cos(), e.sin()


def rot(x):
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def trans(x, W, p, c, eps=1e-5):
    nl, nh, win, theta = c["num_hidden_layers"], c["num_attention_heads"], c["sliding_window"], c["rope_theta"]
    Tn = x.shape[0]
    for l in range(nl):
        q = f"{p}layers.{l}."
        h = rms(x, W[q + "input_layernorm.weight"], eps)
        hd = W[q + "self_attn.q_proj.weight"].shape[0] // nh
        Q, K, V = ((h @ W[f"{q}self_attn.{k}_proj.weight"].T).view(Tn, nh, hd).transpose(0, 1) for k in "qkv")
        co, si = rope(Tn, hd, theta)
        Q, K = Q * co + rot(Q) * si, K * co + rot(K) * si
        i, j = torch.arange(Tn)[:, None], torch.arange(Tn)[None]
        mask = (j <= i) & (i - j < win)
        A = (Q @ K.transpose(1, 2) / math.sqrt(hd)).masked_fill(~mask, -1e30).softmax(-1) @ V
        o = A.transpose(0, 1).reshape(Tn, -1) @ W[q + "self_attn.o_proj.weight"].T
        x = x + W[q + "self_attn_layer_scale.scale"] * o
        h = rms(x, W[q + "post_attention_layernorm.weight"], eps)
        x = x + W[q + "mlp_layer_scale.scale"] * (
            (F.silu(h @ W[q + "mlp.gate_proj.weight"].T) * (h @ W[q + "mlp.up_proj.weight"].T))
            @ W[q + "mlp.down_proj.weight"].T
        )
    return rms(x, W[p + "norm.weight"], eps)


def cconv(x, W, p, dil=1, groups=1):
    w = W[p + ".conv.weight"]
    return F.conv1d(F.pad(x, ((w.shape[-1] - 1) * dil, 0)), w, W[p + ".conv.bias"], dilation=dil, groups=groups)


def tconv(x, W, p, s, omni):
    w = W[p + ".conv.weight"]
    y = F.conv_transpose1d(x, w, W[p + ".conv.bias"], stride=s)
    t = w.shape[-1] - s
    return y[..., (t if omni else 0) : y.shape[-1] - t]


def snake(x, W, p):
    return x + torch.sin(x * W[p + ".alpha"].exp()[:, None]) ** 2 / (W[p + ".beta"].exp()[:, None] + 1e-9)


def vocoder(x, W, p, omni, rates=(8, 5, 4, 3)):
    for i in range(2):
        x = tconv(x, W, f"{p}upsample.{i}.0", 2, omni)
        q = f"{p}upsample.{i}.1."
        h = cconv(x, W, q + "dwconv", groups=x.shape[1]).transpose(1, 2)
        h = F.layer_norm(h, (h.shape[-1],), W[q + "norm.weight"], W[q + "norm.bias"], 1e-6)
        h = F.gelu(F.linear(h, W[q + "pwconv1.weight"], W[q + "pwconv1.bias"]))
        x = x + (W[q + "gamma"] * F.linear(h, W[q + "pwconv2.weight"], W[q + "pwconv2.bias"])).transpose(1, 2)
    x = cconv(x, W, p + "decoder.0")
    for i, r in enumerate(rates, 1):
        q = f"{p}decoder.{i}.block."
        x = tconv(snake(x, W, q + "0"), W, q + "1", r, omni)
        for j, d in ((2, 1), (3, 3), (4, 9)):
            x = x + cconv(
                snake(cconv(snake(x, W, f"{q}{j}.act1"), W, f"{q}{j}.conv1", d), W, f"{q}{j}.act2"), W, f"{q}{j}.conv2"
            )
    return cconv(snake(x, W, p + "decoder.5"), W, p + "decoder.6").clamp(-1, 1)


W = f32(f"{T}/qwen3_omni/model.safetensors")
g = load_file(f"{T}/qwen3_omni/golden/code2wav.safetensors")
c = g["codes"][0].long()
cw = json.load(open(f"{T}/qwen3_omni/config.json"))["code2wav_config"]
CB = cw["codebook_size"]


def omni_wav(c, omni=True):
    x = W["code2wav.code_embedding.weight"][c + CB * torch.arange(c.shape[0])[:, None]].mean(0)
    return vocoder(trans(x, W, "code2wav.pre_transformer.", cw).T[None], W, "code2wav.", omni)[0, 0]


print("== vocoders")
full = g["wav.full"][0, 0]
close("omni code2wav from raw weights", omni_wav(c), full)
NF = c.shape[1]
for key in sorted(k for k in g if k.startswith("wav.chunked.")):
    cs, lf = map(int, key.split(".")[2:])
    close(
        "omni " + key,
        torch.cat(
            [
                omni_wav(c[:, s - (lf if s > lf else s) : s + cs])[(lf if s > lf else s) * 1920 :]
                for s in range(0, NF, cs)
            ]
        ),
        g[key][0, 0],
    )
y = omni_wav(c, omni=False)
d = (y[555:] - full).abs()
bad = (d > 1e-4).nonzero()
print(
    f"   causal (right-trim) variant: len {len(y)}; y[555+k] vs hf[k]: last k with |diff|>1e-4 = {int(bad.max()) if len(bad) else -1} of {len(full)}; max after = {float(d[int(bad.max()) + 1 :].max()) if len(bad) else float(d.max()):.1e}"
)
p = omni_wav(c[:, :20])
k = 1920 * 20 - 555
print(f"   prefix property of hf output: full(20 frames) vs full({NF})[:{k}]: {float((p - full[:k]).abs().max()):.1e}")
W = f32(f"{T}/qwen3_tts/custom_voice/speech_tokenizer/model.safetensors")
g = load_file(f"{T}/qwen3_tts/golden/decoder12hz.safetensors")
c = g["codes"][0].long()
cb = lambda q, i: (
    W[f"decoder.quantizer.{q}.vq.layers.{i}._codebook.embedding_sum"]
    / W[f"decoder.quantizer.{q}.vq.layers.{i}._codebook.cluster_usage"].clamp(min=1e-5)[:, None]
)
z = (
    cb("rvq_first", 0)[c[0]] @ W["decoder.quantizer.rvq_first.output_proj.weight"][..., 0].T
    + sum(cb("rvq_rest", i)[c[i + 1]] for i in range(c.shape[0] - 1))
    @ W["decoder.quantizer.rvq_rest.output_proj.weight"][..., 0].T
)
x = cconv(z.T[None], W, "decoder.pre_conv")[0].T
P = "decoder.pre_transformer."
x = F.linear(x, W[P + "input_proj.weight"], W[P + "input_proj.bias"])
dc = json.load(open(f"{T}/qwen3_tts/custom_voice/speech_tokenizer/config.json"))["decoder_config"]
x = trans(x, W, P, dc)
x = F.linear(x, W[P + "output_proj.weight"], W[P + "output_proj.bias"])
close("tts decoder from raw weights", vocoder(x.T[None], W, "decoder.", False)[0, 0], g["wav.full"][0, 0])
