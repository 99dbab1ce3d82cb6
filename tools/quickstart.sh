#!/usr/bin/env bash
# From nothing to a GPT-1 that has read something: about five minutes on two CPU cores, no GPU, no compiler, no data.
# Everything it makes lies in the folder quickstart/ (or the one that is named as argument).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bash "$root/tools/setup.sh"
out=${1:-quickstart}
mkdir -p "$out"
cd "$out"
gpt1() { printf '\n$ gpt1-ds %s\n' "$*" >&2; "$root/.venv/bin/gpt1-ds" "$@"; }

gpt1 doctor
[ -d tokenizer ] || gpt1 tokenizer train --input python-docs --out tokenizer --vocab-size 4096
gpt1 data build --input python-docs --tokenizer tokenizer --out data --validation 0.05
gpt1 data ngrams data --orders 3
gpt1 pretrain -c pretrain/tiny_cpu data.path=data --nproc 2
gpt1 evaluate --checkpoint runs/tiny_cpu
gpt1 sample --checkpoint runs/tiny_cpu --prompt "Return the" --tokens 100 --temperature 0.7 --top-k 40 |
  tr -s '[:space:]' ' ' | fold -s -w 100 | sed -n '1,3p'
gpt1 report runs/tiny_cpu

echo
"$root/.venv/bin/python" - <<'END'
import json
from pathlib import Path

model = json.loads(Path("runs/tiny_cpu/eval.json").read_text())[-1]["metrics"]
print("held-out cross-entropy, nats per token (bits per byte):")
for name, score in zip(("unigram", "bigram", "trigram"), json.loads(Path("data/ngrams.json").read_text())):
    print(f"  {name + ' counts':15} {score['loss']:.3f}  ({score['bits_per_byte']:.3f})")
print(f"  {'this GPT-1':15} {model['loss']:.3f}  ({model['bits_per_byte']:.3f})")
print(f"report page: {Path('runs/tiny_cpu/report.html').resolve()}")
END
