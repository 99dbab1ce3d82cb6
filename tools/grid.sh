#!/usr/bin/env bash
# Five architectures, two objectives, one shelf of novels: bash tools/grid.sh FOLDER_OF_NOVELS TASKS [OUT]
# Tokenizer, dataset, then the study finetune/study/grid: it trains its models, fine-tunes each, and writes table, figures and
# results.csv. Hours on two cores; the same command resumes. TASKS is a folder that this has filled:
# gpt1-ds data fetch --out TASKS sst2_sentences glue/qnli
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
# shellcheck source=tools/on_novels.sh
. "$(dirname "$0")/on_novels.sh" "$1" "$2" "${3:-grid}"

[ -d tok ] || gpt1 tokenizer train --input "$books" --out tok --model unigram --sentinels 64 --vocab-size 4096 --unwrap
gpt1 data build --input "$books" --tokenizer tok --out data/books --unwrap --validation 0.05
link sst2_sentences qnli
study grid
gpt1 report "runs/grid$part"/pretrained/*/seed-1 --out report
