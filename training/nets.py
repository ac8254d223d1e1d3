"""Plain-PyTorch training copies of the Qwen3-Omni-MoE thinker, talker and code predictor (same math and, after
`to_hf`, the same tensor names as the Hugging Face checkpoint), plus the configuration shared by all scripts."""

import json, math, os
import torch, torch.nn as nn, torch.nn.functional as F

G, CB, FPS, HOP, SR = 8, 512, 12.5, 1920, 24000  # code groups, codes per group
SPEAKERS = {"heart": 0, "alto": 1, "tenor": 2}
VOCAB = 1040  # text vocabulary (tokenizer uses 1033)
codec = lambda real: real - 2048 + CB  # codec special ids sit right behind the codes, as in the real model
PAD_C, BOS_C, EOS_C, NOTHINK, THINK_BOS, THINK_EOS = (codec(x) for x in (2148, 2149, 2150, 2155, 2156, 2157))
SPK = {n: codec(2301 + i) for n, i in SPEAKERS.items()}
# The reference samples groups 1..7 at temperature 1 whatever a checkpoint says, which a predictor of this size does not
# bear; so the logits of a checkpoint are made larger.
PREDICTOR_TEMPERATURE = 0.5
TH = dict(hidden=256, layers=4, heads=4, kv=2, hd=64, experts=4, topk=2, inter=128, shared=0, theta=1e6, eps=1e-6)
TK = dict(
    hidden=256,
    layers=7,
    heads=4,
    kv=2,
    hd=64,
    experts=4,
    topk=2,
    inter=160,
    shared=256,
    theta=1e6,
    eps=1e-6,
    text_inter=384,
    drop=0.02,
)
CP = dict(hidden=256, layers=3, heads=4, kv=2, hd=64, dense=512, theta=1e6, eps=1e-6)
C2W = dict(
    codebook_size=CB,
    hidden_size=256,
    max_position_embeddings=8000,
    rope_theta=10000,
    num_attention_heads=4,
    num_key_value_heads=4,
    attention_bias=False,
    sliding_window=72,
    intermediate_size=512,
    hidden_act="silu",
    layer_scale_initial_scale=0.01,
    rms_norm_eps=1e-5,
    num_hidden_layers=3,
    num_quantizers=G,
    upsample_rates=[8, 5, 4, 3],
    upsampling_ratios=[2, 2],
    decoder_dim=384,
)


class RMSNorm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps).to(x.dtype)


def rope_tables(n, hd, theta, device):
    inv = theta ** (-torch.arange(0, hd, 2, device=device, dtype=torch.float32) / hd)
    a = torch.arange(n, device=device, dtype=torch.float32)[:, None] * inv
    a = torch.cat([a, a], -1)
    return a.cos(), a.sin()


def rope(x, cos, sin):
    h = x.shape[-1] // 2
    return x * cos.to(x.dtype) + torch.cat([-x[..., h:], x[..., :h]], -1) * sin.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        H, q, k = c["hidden"], c["heads"] * c["hd"], c["kv"] * c["hd"]
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(H, q, bias=False),
            nn.Linear(H, k, bias=False),
            nn.Linear(H, k, bias=False),
            nn.Linear(q, H, bias=False),
        )
        self.q_norm, self.k_norm = RMSNorm(c["hd"], c["eps"]), RMSNorm(c["hd"], c["eps"])

    def qkv(self, x, cos, sin):
        """x [..., L, H]; cos, sin [..., L, hd] -> q, k, v [..., L, heads, hd]"""
        heads = lambda y: y.unflatten(-1, (-1, self.c["hd"]))
        cos, sin = cos[..., None, :], sin[..., None, :]
        q, k = self.q_norm(heads(self.q_proj(x))), self.k_norm(heads(self.k_proj(x)))
        return rope(q, cos, sin), rope(k, cos, sin), heads(self.v_proj(x))

    def attend(self, q, k, v, cache=None):
        """[B, L, heads, hd] -> [B, L, heads * hd]"""
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            if "k" in cache:
                k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
            cache["k"], cache["v"] = k, v
        r = self.c["heads"] // self.c["kv"]
        causal = q.shape[2] > 1
        o = F.scaled_dot_product_attention(q, k.repeat_interleave(r, 1), v.repeat_interleave(r, 1), is_causal=causal)
        return o.transpose(1, 2).flatten(2)


class MLP(nn.Module):
    def __init__(self, H, I):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            nn.Linear(H, I, bias=False),
            nn.Linear(H, I, bias=False),
            nn.Linear(I, H, bias=False),
        )

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MoE(nn.Module):
    """All experts computed densely and masked by the top-k weights: same result as routing, friendlier to a GPU at this size."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        H, E, I = c["hidden"], c["experts"], c["inter"]
        self.gate = nn.Linear(H, E, bias=False)
        self.gate_up = nn.Parameter(torch.randn(E, 2 * I, H) / math.sqrt(H))
        self.down = nn.Parameter(torch.randn(E, H, I) / math.sqrt(I))
        if c["shared"]:
            self.shared_expert, self.shared_expert_gate = MLP(H, c["shared"]), nn.Linear(H, 1, bias=False)
        self.aux = 0.0

    def forward(self, x):
        c = self.c
        sh = x.shape
        x = x.reshape(-1, sh[-1])
        E, I = c["experts"], c["inter"]
        p = self.gate(x).float().softmax(-1)
        v, i = p.topk(c["topk"], -1)
        w = torch.zeros_like(p).scatter(1, i, v / v.sum(-1, keepdim=True))
        if self.training:
            self.aux = E * ((w > 0).float().mean(0) / c["topk"] * p.mean(0)).sum()
        gu = (x @ self.gate_up.to(x.dtype).reshape(E * 2 * I, -1).t()).view(-1, E, 2, I)
        a = F.silu(gu[:, :, 0]) * gu[:, :, 1] * w[:, :, None].to(x.dtype)
        y = a.reshape(-1, E * I) @ self.down.to(x.dtype).permute(0, 2, 1).reshape(E * I, -1)
        if c["shared"]:
            y = y + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        return y.view(sh)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.p = c.get("drop", 0.0)
        self.self_attn = Attention(c)
        self.mlp = MLP(c["hidden"], c["dense"]) if "dense" in c else MoE(c)
        self.input_layernorm, self.post_attention_layernorm = (
            RMSNorm(c["hidden"], c["eps"]),
            RMSNorm(c["hidden"], c["eps"]),
        )

    def before(self, x, cos, sin):
        return self.self_attn.qkv(self.input_layernorm(x), cos, sin)

    def after(self, x, o):
        """o: what attention found. -> rows, load-balance term (None without experts)"""
        x = x + F.dropout(self.self_attn.o_proj(o), self.p, self.training)
        x = x + F.dropout(self.mlp(self.post_attention_layernorm(x)), self.p, self.training)
        return x, (self.mlp.aux if isinstance(self.mlp, MoE) else None)

    def forward(self, x, cos, sin, cache=None):
        return self.after(x, self.self_attn.attend(*self.before(x, cos, sin), cache))[0]


class Stack(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.norm = RMSNorm(c["hidden"], c["eps"])

    def forward(self, x, pos0=0, caches=None):
        cos, sin = rope_tables(pos0 + x.shape[1], self.c["hd"], self.c["theta"], x.device)
        for i, l in enumerate(self.layers):
            x = l(x, cos[pos0:], sin[pos0:], None if caches is None else caches[i])
        return self.norm(x)

    def aux(self):
        return sum(l.mlp.aux for l in self.layers if isinstance(l.mlp, MoE))

    def train_rows(self, x, fast=None, tap=0):
        """x [B, L, H] -> the same as forward, the rows after `tap` layers, the load-balance term. fast: compiled (before,
        after); they see B * L rows at once, so that batches of any shape with as many rows need no other kernel."""
        B, L, _ = x.shape
        before, after = fast or (Layer.before, Layer.after)
        cos, sin = rope_tables(L, self.c["hd"], self.c["theta"], x.device)
        cos, sin = cos.repeat(B, 1), sin.repeat(B, 1)
        x, mid, aux = x.flatten(0, 1), None, 0.0
        for i, l in enumerate(self.layers):
            q, k, v = (y.view(B, L, *y.shape[1:]) for y in before(l, x, cos, sin))
            x, a = after(l, x, l.self_attn.attend(q, k, v).flatten(0, 1))
            aux = aux + (a if a is not None else 0.0)
            mid = x if i + 1 == tap else mid
        return self.norm(x).view(B, L, -1), mid, aux / len(self.layers)


def init(m, std=0.02):
    n = sum(isinstance(x, Layer) for x in m.modules())
    for name, p in m.named_parameters():
        if p.dim() < 2:
            continue
        s = 0.06
        if "o_proj" in name or "down" in name:
            s = 0.06 / math.sqrt(2 * max(n, 1))
        if "embed" in name:
            s = 0.5 if "tokens" in name else 0.1
        nn.init.normal_(p, 0, s)


class Thinker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, TH["hidden"])
        self.stack = Stack(TH)
        self.lm_head = nn.Linear(TH["hidden"], VOCAB, bias=False)
        init(self)

    def forward(self, ids, pos0=0, caches=None):
        return self.lm_head(self.stack(self.embed_tokens(ids), pos0, caches))

    @torch.no_grad()
    def generate(self, ids, eos, n=120):
        caches = [{} for _ in range(TH["layers"])]
        x = torch.tensor([ids], device=self.lm_head.weight.device)
        pos, out = 0, []
        for _ in range(n):
            t = int(self(x, pos, caches)[0, -1].argmax())
            pos += x.shape[1]
            if t == eos:
                break
            out.append(t)
            x = torch.tensor([[t]], device=x.device)
        return out

    def to_hf(self):
        sd = {
            "thinker.model.embed_tokens.weight": self.embed_tokens.weight,
            "thinker.lm_head.weight": self.lm_head.weight,
            "thinker.model.norm.weight": self.stack.norm.weight,
        }
        sd.update(layers_to_hf(self.stack, "thinker.model."))
        return sd


def layers_to_hf(stack, pre):
    sd = {}
    for i, l in enumerate(stack.layers):
        for n, p in l.named_parameters():
            if n == "mlp.gate_up":
                I = p.shape[1] // 2
                for e in range(p.shape[0]):
                    (
                        sd[f"{pre}layers.{i}.mlp.experts.{e}.gate_proj.weight"],
                        sd[f"{pre}layers.{i}.mlp.experts.{e}.up_proj.weight"],
                    ) = p[e, :I], p[e, I:]
            elif n == "mlp.down":
                for e in range(p.shape[0]):
                    sd[f"{pre}layers.{i}.mlp.experts.{e}.down_proj.weight"] = p[e]
            else:
                sd[f"{pre}layers.{i}.{n}"] = p
    return sd


class Resize(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear_fc1, self.linear_fc2 = (
            nn.Linear(TH["hidden"], TK["text_inter"]),
            nn.Linear(TK["text_inter"], TK["hidden"]),
        )

    def forward(self, x):
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


class Talker(nn.Module):
    """thinker_embed: the (frozen) thinker embedding table the text rows come from."""

    def __init__(self, thinker_embed):
        super().__init__()
        self.register_buffer("te", thinker_embed.detach().clone(), persistent=False)
        self.text_projection, self.hidden_projection = Resize(), Resize()
        H = TK["hidden"]
        self.codec_embedding = nn.Embedding(CB + 1024, H)
        self.codec_head = nn.Linear(H, CB + 1024, bias=False)
        self.stack, self.cp = Stack(TK), Stack(CP)
        self.cp_embedding = nn.ModuleList(nn.Embedding(CB, H) for _ in range(G - 1))
        self.cp_head = nn.ModuleList(nn.Linear(H, CB, bias=False) for _ in range(G - 1))
        init(self)
        self.hidden_projection.requires_grad_(False)

    def text(self, ids):
        return self.text_projection(F.embedding(ids, self.te))

    def code_rows(self, codes):  # [..., G] -> [..., H]
        x = self.codec_embedding(codes[..., 0])
        for g in range(1, G):
            x = x + self.cp_embedding[g - 1](codes[..., g])
        return x

    def rows(self, text_ids, codec_ids, codes, is_frame):
        """text_ids, codec_ids [B, L] (special codec id of the row, negative for none); codes [B, L, G] of frame rows (where
        is_frame) -> [B, L, H]"""
        x = self.text(text_ids) + self.codec_embedding(codec_ids.clamp(min=0)) * (codec_ids >= 0)[..., None]
        return x + self.code_rows(codes) * is_frame[..., None]

    def cp_logits(self, h, codes, fast=None):
        """h [N, H] talker output that predicted group 0; codes [N, G] -> [N, G - 1, CB]"""
        rows = [h, self.codec_embedding(codes[:, 0])] + [self.cp_embedding[g - 1](codes[:, g]) for g in range(1, G - 1)]
        x = torch.stack(rows, 1)
        y = self.cp.train_rows(x, fast)[0] if self.training else self.cp(x)
        return torch.stack([head(y[:, g + 1]) for g, head in enumerate(self.cp_head)], 1)

    def to_hf(self):
        sd = {
            "talker.model.codec_embedding.weight": self.codec_embedding.weight,
            "talker.codec_head.weight": self.codec_head.weight,
            "talker.model.norm.weight": self.stack.norm.weight,
            "talker.code_predictor.model.norm.weight": self.cp.norm.weight,
        }
        sd.update(layers_to_hf(self.stack, "talker.model."))
        sd.update(layers_to_hf(self.cp, "talker.code_predictor.model."))
        for g in range(G - 1):
            (
                sd[f"talker.code_predictor.model.codec_embedding.{g}.weight"],
                sd[f"talker.code_predictor.lm_head.{g}.weight"],
            ) = self.cp_embedding[g].weight, self.cp_head[g].weight
        for w in ("text_projection", "hidden_projection"):
            for n, p in getattr(self, w).named_parameters():
                sd[f"talker.{w}.{n}"] = p
        return sd


def from_hf(folder):
    """Weights of a checkpoint folder as the state dicts of the modules here: {"thinker", "talker", "code2wav"}."""
    from safetensors.torch import load_file

    sd = {k: v.float() for k, v in load_file(f"{folder}/model.safetensors").items()}
    th = Thinker()
    tk = Talker(th.embed_tokens.weight)
    out = {}
    for name, m in (("thinker", th), ("talker", tk)):
        for k, v in m.to_hf().items():
            if k in sd:
                v.data.copy_(sd[k])  # to_hf gives views of the module's own parameters
        out[name] = m.state_dict()
    out["code2wav"] = {k[9:]: v for k, v in sd.items() if k.startswith("code2wav.")}
    return out


class World:
    """Several processes (torchrun), each with its own batches and one GPU: their gradients averaged. One process: nothing."""

    def __init__(self, device):
        self.size, self.rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        self.dev = device
        if device == "cuda" and self.size > 1:
            self.dev = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
            torch.cuda.set_device(self.dev)
        if self.size > 1:
            import torch.distributed as dist

            dist.init_process_group("nccl" if device == "cuda" else "gloo")
            self.dist = dist

    def same(self, m):
        """Everybody starts from rank 0's weights."""
        if self.size > 1:
            for p in list(m.parameters()) + list(m.buffers()):
                self.dist.broadcast(p.data, 0)

    def agree(self, number):
        """Rank 0's number, in every process."""
        if self.size == 1:
            return number
        x = torch.tensor([number], dtype=torch.float64, device=self.dev)
        self.dist.broadcast(x, 0)
        return float(x)

    def average(self, params):
        """Averages the gradients in place."""
        if self.size == 1:
            return
        for p in params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = torch.cat([p.grad.reshape(-1) for p in params])
        flat = flat.bfloat16() if flat.is_cuda else flat  # half as much to send
        self.dist.all_reduce(flat)
        flat /= self.size
        torch._foreach_copy_(
            [p.grad for p in params], [x.view_as(p) for x, p in zip(flat.split([p.numel() for p in params]), params)]
        )


# ------------------------------------------------------------------------------------------------ prompt layout
class Ids:
    def __init__(self, text_dir):
        from tokenizers import Tokenizer

        self.tok = Tokenizer.from_file(f"{text_dir}/tokenizer.json")
        t = self.tok.token_to_id
        self.im_start, self.im_end, self.user, self.system, self.assistant = (
            t("<|im_start|>"),
            t("<|im_end|>"),
            t("user"),
            t("system"),
            t("assistant"),
        )
        self.nl = self.tok.encode("\n").ids[0]
        self.pad, self.bos, self.eos = t("<tts_pad>"), t("<tts_text_bos>"), t("<tts_text_eod>")
        self.eot = t("<|endoftext|>")

    def enc(self, s):
        return self.tok.encode(s).ids

    def user_seg(self, ids):
        return [self.im_start, self.user, self.nl, *ids, self.im_end, self.nl]

    def prompt(self, q, system=None):
        p = [] if system is None else [self.im_start, self.system, self.nl, *self.enc(system), self.im_end, self.nl]
        return p + self.user_seg(self.enc(q)) + [self.im_start, self.assistant, self.nl]

    def talker_rows(self, user, text, n_frames, spk):
        """-> text ids, codec special ids (-1: none) of the prefill; trailing text ids for n_frames frames."""
        pre_t = list(user) + [self.im_start, self.assistant, self.nl] + [self.pad] * 4 + [self.bos, text[0]]
        pre_c = [-1] * (len(user) + 3) + [
            NOTHINK,
            THINK_BOS,
            THINK_EOS,
            SPK[spk] if isinstance(spk, str) else spk,
            PAD_C,
            BOS_C,
        ]
        tr = (list(text[1:]) + [self.eos] + [self.pad] * n_frames)[:n_frames]
        return pre_t, pre_c, tr


def n_params(m):
    return sum(p.numel() for p in m.parameters())


if __name__ == "__main__":
    th = Thinker()
    tk = Talker(th.embed_tokens.weight)
    print(
        "thinker",
        n_params(th),
        "talker",
        n_params(tk),
        "of which cp",
        n_params(tk.cp) + n_params(tk.cp_embedding) + n_params(tk.cp_head),
    )
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig

    print("code2wav", n_params(Qwen3OmniMoeCode2Wav(Qwen3OmniMoeCode2WavConfig(**C2W))))
