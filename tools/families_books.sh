#!/usr/bin/env bash
# What pre-training teaches each family on a shelf of novels: bash tools/families_books.sh FOLDER_OF_NOVELS TASKS OUT [PART...]
# Seven models of one size read 12.3 million tokens each by Muon; then minimal pairs, and fine-tuning studies with the same
# models from nothing. PART is bert, t5, prefix, gpt2, roberta, gpt1, lstm, sentences (vectors, by BERT and RoBERTa), or study,
# which needs all seven; without one, all, in about eight hours of one core. The same command resumes. TASKS is a folder that
# also holds sts and sick, and that this has filled: gpt1-ds data fetch --out TASKS sst2_sentences snli blimp stsb_labelled
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
# shellcheck source=tools/on_novels.sh
. "$(dirname "$0")/on_novels.sh" "$1" "$2" "$3"
shift 3
[ $# -gt 0 ] || set -- bert t5 prefix gpt2 roberta gpt1 lstm sentences study
among "bert t5 prefix gpt2 roberta gpt1 lstm sentences study" "$@"

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

sentences() { # also the vectors of models that nobody tuned: untrained has the weights that BERT began with
  local name run
  for name in bert roberta; do
    [ -d "runs/$name" ] || { echo "sentences: there is no runs/$name; run the part $name first" >&2; exit 2; }
  done
  link snli stsb_labelled sts sick
  gpt1 pretrain -c pretrain/bert_books_cpu run.name=untrained data.path=data/wordpiece train.steps=1 optimizer.lr=1e-9
  study families_sentences
  local tuned=runs/families_sentences$part/sentences runs=(BERT=runs/bert "untrained BERT=runs/untrained" RoBERTa=runs/roberta)
  for name in Sentence-BERT "Sentence-BERT from nothing" Sentence-RoBERTa "Sentence-RoBERTa from nothing"; do
    for run in "$tuned/${name// /-}/optimizer.lr-3e-4"/seed-*; do # of one rate
      [ ! -d "$run" ] || runs+=("$name=$run")
    done
  done
  "$root/.venv/bin/python" "$root/tools/sentence_vectors.py" --whiten --out vectors --runs "${runs[@]}" \
    --sets data/sts/201[2345] data/stsb_labelled data/sick/SICK_test_annotated.txt
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
    sentences) sentences ;;
    study) study families_books ;;
  esac
done
[ ${#scored[@]} = 0 ] || "$root/.venv/bin/python" "$root/tools/probe_curves.py" "${scored[@]}" --out probes
