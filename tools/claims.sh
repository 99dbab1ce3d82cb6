#!/usr/bin/env bash
# GPT-1's claims on one shelf of novels: bash tools/claims.sh FOLDER_OF_NOVELS TASKS OUT [PART...]
# PART is rates, labels, controls, auxiliary, layers, lstm or zeroshot; without one, all but rates, in hours on two cores. The
# same command resumes. Expectations stand in the studies' files (configs/finetune/study/claims_*). TASKS is a folder that
# this has filled: gpt1-ds data fetch --out TASKS sst2_sentences glue/qnli glue/mnli snli blimp glue/cola
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
# shellcheck source=tools/on_novels.sh
. "$(dirname "$0")/on_novels.sh" "$1" "$2" "$3"
shift 3
[ $# -gt 0 ] || set -- labels controls auxiliary layers lstm zeroshot
among "rates labels controls auxiliary layers lstm zeroshot" "$@"

shelf
[ -d tok ] || gpt1 tokenizer train --input shelf --out tok --vocab-size 8000 --unwrap
gpt1 data build --input shelf --tokenizer tok --out data/bpe --unwrap --validation 0.05
link sst2_sentences qnli mnli snli blimp cola

shuffled() { # the words of each novel in another order, its frequencies kept: a fixed one for each file
  mkdir -p shuffled
  "$root/.venv/bin/python" - shelf shuffled <<'PYTHON'
import random
import sys
from pathlib import Path

for file in sorted(Path(sys.argv[1]).glob("*.txt")):
    words = file.read_text(encoding="utf-8", errors="replace").split()
    random.Random(file.name).shuffle(words)
    Path(sys.argv[2], file.name).write_text(" ".join(words))
PYTHON
  gpt1 data build --input shuffled --tokenizer tok --out data/shuffled --validation 0.05
}

rates() { # a pilot for claim B: three rates for each kind of model, a quarter of the tokens, held-out loss decides
  for kind in books_muon books_lstm; do
    gpt1 pretrain -c "pretrain/$kind" run.name="rates-$kind" data.path=data/bpe train.tokens=$((750000 / ${REHEARSE:-1})) train.global_batch=4 \
      train.micro_batch=4 train.precision=bf16 optimizer.name=muon optimizer.weight_decay=0.1 model.residual_dropout=0 \
      model.embedding_dropout=0 model.attention_dropout=0 --sweep optimizer.lr=16e-4,32e-4,64e-4 --jobs 2
  done
  {
    echo "preset,$(head -1 runs/rates-books_muon-sweep/results.csv)"
    for kind in books_muon books_lstm; do sed "1d; s/^/$kind,/" "runs/rates-$kind-sweep/results.csv"; done
  } | tr -d '\r' >rates.csv
}

zeroshot() { # twelve checkpoints of each model, evenly on a log scale of steps
  for run in "runs/claims_labels$part"/pretrained/{GPT-1,LSTM}/seed-*; do
    [ -d "$run" ] || continue
    gpt1 evaluate --checkpoint "$run" -c evaluate/claims --every --points 12 --nproc 2
  done
  "$root/.venv/bin/python" "$root/tools/probe_curves.py" "runs/claims_labels$part"/pretrained/{GPT-1,LSTM}/seed-* --out zeroshot
}

for claim in "$@"; do
  case $claim in
    zeroshot) zeroshot ;;
    rates) rates ;;
    layers) shuffled; study claims_layers ;;
    labels | controls | auxiliary | lstm) study "claims_$claim" ;;
  esac
done
