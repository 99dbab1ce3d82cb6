#!/usr/bin/env bash
# GPT-1 and a RoBERTa of 10 million parameters on one shelf of novels: bash tools/books_10m.sh FOLDER_OF_NOVELS TASKS OUT [gpt1] [roberta] [probes] [tasks] [remedies]
# Without names all of it: the two models (hours on two cores), zero-shot scores of their checkpoints, GPT-1 fine-tuned on tasks of the
# paper's tables beside controls, and remedies for tasks of two texts. The same command resumes. TASKS is a folder that this has filled:
# gpt1-ds data fetch --out TASKS blimp glue/cola sst2_sentences stsb_labelled glue/qnli glue/mnli snli
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
# shellcheck source=tools/on_novels.sh
. "$(dirname "$0")/on_novels.sh" "$1" "$2" "$3"
shift 3
[ $# -gt 0 ] || set -- gpt1 roberta probes tasks remedies
among "gpt1 roberta probes tasks remedies" "$@"

shelf
[ -d tok ] || gpt1 tokenizer train --input shelf --out tok --vocab-size 8000 --unwrap
[ -d tok_bytes ] || gpt1 tokenizer train --input shelf --out tok_bytes --model gpt2-bpe --masks --vocab-size 8000 --unwrap
gpt1 data build --input shelf --tokenizer tok --out data/bpe --unwrap --validation 0.02
gpt1 data build --input shelf --tokenizer tok_bytes --out data/bytes --unwrap --validation 0.02 --sentences
link blimp cola sst2_sentences stsb_labelled qnli mnli snli

train() { # PRESET DATASET TOKENS
  gpt1 pretrain -c "pretrain/$1" data.path="data/$2" train.tokens=$(($3 / ${REHEARSE:-1}))
  gpt1 evaluate --checkpoint "runs/$1"
}

for step in "$@"; do
  case $step in
    gpt1) train gpt1_10m bpe 14745600 ;;
    roberta)
      train roberta_10m bytes 12288000
      # a forward pass for every token that is scored: no next sentences, which are long
      gpt1 evaluate --checkpoint runs/roberta_10m --nproc 2 \
        "probes=[{name: blimp, path: data/blimp, limit: 20100}, {name: cola, path: data/cola}]"
      ;;
    probes)
      gpt1 evaluate --checkpoint runs/gpt1_10m -c evaluate/claims --every --points 12 --nproc 2
      "$root/.venv/bin/python" "$root/tools/probe_curves.py" runs/gpt1_10m --out report
      ;;
    tasks) study books_10m ;;
    remedies) study two_texts ;;
  esac
done
