"""The part of a byte-level BPE tokenizer.json that the prompts of golden chat cases need, with the ids of the whole.

    oracle/subset_tokenizer.py TOKENIZER_JSON GOLDEN_FOLDER OUT_JSON

Kept are the tokens that occur as a substring of a prompt, and the merges of kept tokens in their order. Merging a word
makes substrings of it only, and merges that are dropped have results that occur nowhere, so every one of these prompts
gets the ids that the whole tokenizer gives it."""
import json, pathlib, sys, unicodedata

whole, golden, out = sys.argv[1:]
tok = json.load(open(whole, encoding="utf-8"))
bs = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
cs = bs[:]
for b in range(256):
    if b not in bs:
        bs.append(b)
        cs.append(256 + len(cs) - 188)
letter = {b: chr(c) for b, c in zip(bs, cs)}

texts = []
for path in sorted(pathlib.Path(golden).glob("frontend_chat_*.json")):
    meta = json.load(open(path, encoding="utf-8"))["meta"]
    texts += [meta["prompt"], meta["prompt_expanded"]]
text = "\n".join("".join(letter[b] for b in unicodedata.normalize("NFC", t).encode()) for t in texts)

model = tok["model"]
model["vocab"] = {word: i for word, i in model["vocab"].items() if word in text or len(word) == 1}
pair = lambda merge: merge if isinstance(merge, list) else merge.split(" ")
model["merges"] = [m for m in model["merges"] if all(p in model["vocab"] for p in [*pair(m), "".join(pair(m))])]
json.dump(tok, open(out, "w", encoding="utf-8"), ensure_ascii=False, indent=0)
print(len(model["vocab"]), "tokens,", len(model["merges"]), "merges")
