#!/bin/sh
# The whole recipe at a tiny scale on a CPU, from an empty folder: some minutes. Ends with the checkpoint loaded and run by
# transformers. Needs requirements.txt and WordNet (Debian: wordnet-base), or its folder in WORDNET.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=${1:-$(mktemp -d)}
exec "${PYTHON:-python3}" "$here/recipe.py" "$work" --device cpu --tiny \
  --wordnet "${WORDNET:-/usr/share/wordnet}" ${HIBARI:+--hibari "$HIBARI"}
