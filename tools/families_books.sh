#!/usr/bin/env bash
# What pre-training teaches each family on a shelf of novels: bash tools/families_books.sh FOLDER_OF_NOVELS TASKS OUT [PART...]
# Seven models of one size read 12.3 million tokens each by Muon; then minimal pairs, and a fine-tuning study with the same
# models from nothing. PART is bert, t5, prefix, gpt2, roberta, gpt1, lstm, or study, which needs them all; without one, all, in
# about seven hours of one core. The same command resumes. TASKS is a folder that this has filled:
# gpt1-ds data fetch --out TASKS sst2_sentences snli blimp
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
# shellcheck source=tools/on_novels.sh
. "$(dirname "$0")/on_novels.sh" "$1" "$2" "$3"
shift 3
[ $# -gt 0 ] || set -- bert t5 prefix gpt2 roberta gpt1 lstm study
among "bert t5 prefix gpt2 roberta gpt1 lstm study" "$@"

shelf
link sst2_sentences snli blimp

prepare() { # DATASET, with what its families need
  local kind=() text=()
  case $1 in
    bpe) kind=(bpe) ;;
    bytes) kind=(gpt2-bpe --masks) text=(--sentences) ;;
    wordpiece) kind=(wordpiece) text=(--sentences) ;;
    unigram) kind=(unigram --sentinels 64) ;;
  esac
  [ -d "tok_$1" ] || gpt1 tokenizer train --input shelf --out "tok_$1" --model "${kind[@]}" --vocab-size 8000 --unwrap
  gpt1 data build --input shelf --tokenizer "tok_$1" --out "data/$1" --unwrap --validation 0.05 "${text[@]}"
}

train() { # NAME PRESET DATASET word...
  local name=$1 preset=$2 dataset=$3
  shift 3
  prepare "$dataset"
  set -- -c "pretrain/$preset" run.name="$name" data.path="data/$dataset" optimizer.name=muon optimizer.weight_decay=0.1 optimizer.lr=3.2e-3 \
    model.residual_dropout=0 model.embedding_dropout=0 model.attention_dropout=0 schedule.kind=wsd schedule.warmup_fraction=0.05 \
    schedule.decay_fraction=0.2 train.precision=bf16 train.eval_every=500 train.eval_batches=32 checkpoint.every=500 "$@"
  gpt1 pretrain "$@" train.tokens=$((12288000 / ${REHEARSE:-1}))
  [ -e "runs/$name/eval.json" ] || gpt1 evaluate --checkpoint "runs/$name" \
    probes="[{name: blimp, path: data/blimp, limit: $((6700 / ${REHEARSE:-1}))}]"
  scored+=("runs/$name")
}

scored=()
for what in "$@"; do
  case $what in
    bert) train bert bert_books_cpu wordpiece train.global_batch=32 train.micro_batch=32 ;;
    roberta) train roberta roberta_books_cpu bytes train.global_batch=32 train.micro_batch=32 ;;
    t5 | prefix) train "$what" "${what}_books_cpu" unigram train.global_batch=16 train.micro_batch=16 ;;
    gpt1) train gpt1 books_cpu bpe model.context=128 train.global_batch=16 train.micro_batch=16 ;;
    gpt2) train gpt2 gpt2_books_cpu bytes model.context=128 train.global_batch=16 train.micro_batch=16 ;;
    lstm) train lstm books_lstm bpe model.context=128 train.global_batch=16 train.micro_batch=16 ;;
    study) study families_books ;;
  esac
done
[ ${#scored[@]} = 0 ] || "$root/.venv/bin/python" "$root/tools/probe_curves.py" "${scored[@]}" --out probes
