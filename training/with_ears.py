"""A checkpoint with ears: the tower and the thinker that train_ears.py leaves, in place of what was there.

    python with_ears.py CHECKPOINT EARS_DIR OUT [OTHER_EARS_DIR]

EARS_DIR has ears.pt, or tower.pt and thinker.pt. With OTHER_EARS_DIR the thinker is the mean of both, weight by weight.
The talker was never taught to read what was heard, and need not: wherever there was sound its prompt has one and the same
row (`hidden_projection` is a constant), that of the token SAID.
"""

import json, os, shutil, sys
import torch
from safetensors.torch import load_file, save_file
from nets import TH, Thinker
from train_ears import EARS

SAID = ","


def learnt(ears):
    """What train_ears.py leaves: weights by the name of the net."""
    if os.path.exists(f"{ears}/ears.pt"):
        return torch.load(f"{ears}/ears.pt", map_location="cpu")
    return {k: torch.load(f"{ears}/{k}.pt", map_location="cpu") for k in ("tower", "thinker")}


def main(checkpoint, ears, out, other=None):
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(checkpoint):
        if name != "DONE":
            shutil.copy(f"{checkpoint}/{name}", out)
    heard = learnt(ears)
    towers = (
        "thinker.audio_tower.",
        "thinker.visual.",
    )  # the other one was never trained: this model says that it cannot see
    sd = {k: v for k, v in load_file(f"{checkpoint}/model.safetensors").items() if not k.startswith(towers)}
    thinker = Thinker()
    thinker.load_state_dict({k: v.float() for k, v in heard["thinker"].items()})
    if other:
        half = {k: v.float() for k, v in learnt(other)["thinker"].items()}
        thinker.load_state_dict({k: (v + half[k]) / 2 for k, v in thinker.state_dict().items()})
    new = {k: v.detach() for k, v in thinker.to_hf().items()}
    same = "thinker.model.embed_tokens.weight"
    if not torch.equal(new[same].bfloat16(), sd[same]):
        raise SystemExit("the talker was trained with other embeddings than this thinker has")
    new.update({f"thinker.audio_tower.{k}": v for k, v in heard["tower"].items()})
    from tokenizers import Tokenizer

    token = Tokenizer.from_file(f"{checkpoint}/tokenizer.json").encode(SAID).ids
    w = lambda name: sd[f"talker.text_projection.{name}"].float()
    x = sd[same][token[0]].float()
    row = w("linear_fc2.weight") @ torch.nn.functional.silu(w("linear_fc1.weight") @ x + w("linear_fc1.bias")) + w(
        "linear_fc2.bias"
    )
    for name in ("linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight"):
        new[f"talker.hidden_projection.{name}"] = torch.zeros_like(w(name))
    new["talker.hidden_projection.linear_fc2.bias"] = row
    for k, v in new.items():
        if "audio_tower" not in k and (k not in sd or sd[k].shape != v.shape):
            raise SystemExit(f"{k}: not of this checkpoint")
    sd.update({k: v.float().contiguous().to(torch.bfloat16).clone() for k, v in new.items()})
    save_file(sd, f"{out}/model.safetensors", metadata={"format": "pt"})
    os.chmod(f"{out}/model.safetensors", 0o644)
    config = json.load(open(f"{checkpoint}/config.json"))
    config["thinker_config"]["audio_config"].update(
        encoder_layers=EARS["layers"], encoder_attention_heads=EARS["heads"], encoder_ffn_dim=EARS["ffn"], d_model=EARS["d"],
        downsample_hidden_size=EARS["channels"], output_dim=TH["hidden"],
    )  # fmt: skip
    json.dump(config, open(f"{out}/config.json", "w"), indent=1)
    tower = sum(v.numel() for k, v in sd.items() if "audio_tower" in k)
    print(
        "audio tower",
        tower,
        "all",
        sum(v.numel() for v in sd.values()),
        "bytes",
        os.path.getsize(f"{out}/model.safetensors"),
    )


if __name__ == "__main__":
    main(*sys.argv[1:5])
