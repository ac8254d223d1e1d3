"""A checkpoint with another voice: the talker and the vocoder that training leaves, in place of what was there.

    python with_voice.py CHECKPOINT TALKER_DIR C2W_DIR OUT      the folder; C2W_DIR "-": the vocoder stays
    python with_voice.py CHECKPOINT take WORK_DIR               its parts as stages leave them, to go on from

Thinker, ears, tokenizer and settings stay. Speakers are those of nets.py. With ears the constant row that the talker reads
wherever there was sound (with_ears.py) is made again. An aligner learnt the codes of the talker before, and is left out
when the vocoder changes: train_aligner.py makes it again.
"""

import json, os, shutil, sys
import torch

if torch.version.cuda and not torch.cuda.is_available():
    torch.cuda.is_current_stream_capturing = lambda: False
from safetensors.torch import load_file, save_file
from nets import PREDICTOR_TEMPERATURE, SPK, Talker, from_hf

HEADS = "talker.code_predictor.lm_head."


def take(checkpoint, work):
    sd = from_hf(checkpoint)
    for k in sd["talker"]:
        if k.startswith("cp_head."):
            sd["talker"][k] = sd["talker"][k] * PREDICTOR_TEMPERATURE
    for name, folder in (("thinker", "thinker"), ("talker", "talker"), ("code2wav", "c2w")):
        os.makedirs(f"{work}/{folder}", exist_ok=True)
        torch.save(sd[name], f"{work}/{folder}/{name}.pt")
        print(f"{work}/{folder}/{name}.pt", len(sd[name]), "tensors")


def main(checkpoint, talker, c2w, out):
    os.makedirs(out, exist_ok=True)
    sd = load_file(f"{checkpoint}/model.safetensors")
    tk = Talker(sd["thinker.model.embed_tokens.weight"].float())
    tk.load_state_dict({k: v.float() for k, v in torch.load(f"{talker}/talker.pt", map_location="cpu").items()})
    new = {k: v.detach() / (PREDICTOR_TEMPERATURE if k.startswith(HEADS) else 1) for k, v in tk.to_hf().items()}
    if c2w != "-":
        got = torch.load(f"{c2w}/code2wav.pt", map_location="cpu")
        new |= {"code2wav." + k: v for k, v in got.items() if "inv_freq" not in k and "code_offset" not in k}
    if not sd["talker.hidden_projection.linear_fc1.weight"].any():
        from tokenizers import Tokenizer
        from with_ears import SAID

        token = Tokenizer.from_file(f"{checkpoint}/tokenizer.json").encode(SAID).ids[0]
        with torch.no_grad():
            row = tk.text(torch.tensor(token))
        hidden = {k: v for k, v in sd.items() if k.startswith("talker.hidden_projection.")}
        new |= hidden | {"talker.hidden_projection.linear_fc2.bias": row}
    for k, v in new.items():
        if k not in sd or sd[k].shape != v.shape:
            raise SystemExit(f"{k}: not of this checkpoint")
    gone = [k for k in sd if k.startswith(("talker.", "code2wav.") if c2w != "-" else "talker.") and k not in new]
    if gone:
        raise SystemExit(f"{gone[:5]}: nothing new for these")
    sd.update({k: v.float().contiguous().to(torch.bfloat16).clone() for k, v in new.items()})
    for name in os.listdir(checkpoint):
        if name not in ("DONE", "model.safetensors", "config.json") and (name != "aligner.safetensors" or c2w == "-"):
            shutil.copy(f"{checkpoint}/{name}", out)
    save_file(sd, f"{out}/model.safetensors", metadata={"format": "pt"})
    os.chmod(f"{out}/model.safetensors", 0o644)
    config = json.load(open(f"{checkpoint}/config.json"))
    config["talker_config"]["speaker_id"] = SPK
    json.dump(config, open(f"{out}/config.json", "w"), indent=1)
    print("speakers", SPK, "bytes", os.path.getsize(f"{out}/model.safetensors"))


if __name__ == "__main__":
    take(sys.argv[1], sys.argv[3]) if sys.argv[2] == "take" else main(*sys.argv[1:5])
