#!/usr/bin/env bash
# The example of `gpt1-ds guide scaling-studies`: bash tools/books_study.sh FOLDER_OF_NOVELS [TASKS] [OUT]
# Tokenizer, dataset, the cells of configs/scaling/books.yaml (about three hours on two cores; the same command continues),
# then the tasks in TASKS (gpt1-ds data fetch --out TASKS glue/sst2 glue/cola cosmosqa copa winograd) on every cell of the ladder:
# the zero-shot probes, and SST-2 fine-tuned on 3,000 sentences. Last the table, the fits and the page.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
books=$(realpath "$1")
tasks=${2:+$(realpath "$2")}
bash "$root/tools/setup.sh"
mkdir -p "${3:-books-study}"
cd "${3:-books-study}"
gpt1() { echo; echo "\$ gpt1-ds $*"; "$root/.venv/bin/gpt1-ds" "$@"; }

[ -d tok ] || gpt1 tokenizer train --input "$books" --out tok --vocab-size 2048
gpt1 data build --input "$books" --tokenizer tok --out data/books --unwrap --validation 0.05
gpt1 scaling run scaling/books
if [ -n "$tasks" ]; then
    for name in sst2 cola cosmosqa copa winograd; do ln -sfn "$tasks/$name" "data/$name"; done
    for cell in runs/books_ladder/l?w*M-seed1; do
        case $cell in *-u*) continue ;; esac # repeated data are another question
        mkdir -p "$cell/tasks/zeroshot"
        gpt1 evaluate --checkpoint "$cell" -c evaluate/zeroshot --out "$cell/tasks/zeroshot/eval.json"
        [ -e "$cell/tasks/sst2/DONE" ] || gpt1 finetune -c finetune/sst2 checkpoint.init_from="$cell" \
            run.dir="$cell/tasks" run.name=sst2 task.path=data/sst2 task.train_examples=3000 \
            task.answer=labelled train.micro_batch=32 train.precision=bf16 optimizer.lr=3e-4 checkpoint.every=0
    done
fi
gpt1 scaling collect scaling/books
gpt1 scaling fit scaling/books
gpt1 scaling report scaling/books
