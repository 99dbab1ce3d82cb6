#!/usr/bin/env bash
# The run that `gpt1-ds guide your-text` shows: bash tools/books.sh FOLDER_OF_NOVELS [OUT]
# Any folder of plain-text novels will do (Project Gutenberg has thousands); one file is one document, and whole documents
# are held out. Tokenizer, dataset, baselines, a GPT-1 (configs/pretrain/books_cpu.yaml), its scores, a sample, a report.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
books=$(realpath "$1")
bash "$root/tools/setup.sh"
out=${2:-books-run}${REHEARSE:+-rehearsal} # REHEARSE=10 trains on a tenth of the tokens
mkdir -p "$out"
cd "$out"
gpt1() { echo; echo "\$ gpt1-ds $*"; "$root/.venv/bin/gpt1-ds" "$@"; }

[ -d tokenizer ] || gpt1 tokenizer train --input "$books" --out tokenizer --vocab-size 8000 --unwrap
gpt1 data build --input "$books" --tokenizer tokenizer --out data/books --unwrap --validation 0.05
gpt1 data ngrams data/books
gpt1 pretrain -c pretrain/books_cpu ${REHEARSE:+train.tokens=$((10000000 / REHEARSE))} --nproc 2
gpt1 evaluate --checkpoint runs/books_cpu
gpt1 sample --checkpoint runs/books_cpu --prompt "It was a" --tokens 120 --temperature 0.8 --top-k 50
gpt1 report runs/books_cpu
