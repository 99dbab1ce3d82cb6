#!/usr/bin/env bash
# Sentence-BERT on one shelf of novels: bash tools/sentences_books.sh FOLDER_OF_NOVELS TASKS [OUT]
# Three BERTs, each tuned by three losses on SNLI and MNLI, then all of them, untuned too, on six sets of scored
# pairs, beside TF-IDF and GloVe. About two hours on two cores; the same command resumes. TASKS is a folder that
# gpt1-ds data fetch --out TASKS nli stsb_labelled has filled, and that also holds sts, sick and glove50.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
# shellcheck source=tools/on_novels.sh
. "$(dirname "$0")/on_novels.sh" "$1" "$2" "${3:-sentences-books}"

[ -d tok ] || gpt1 tokenizer train --input "$books" --out tok --model wordpiece --vocab-size 8000 --unwrap
gpt1 data build --input "$books" --tokenizer tok --out data/wordpiece --unwrap --validation 0.05 --sentences
link nli stsb_labelled sts sick glove50
study sentences_books
done=runs/sentences_books$part
runs=()
for seed in 1 2 3; do
    [ -d "$done/pretrained/BERT/seed-$seed" ] || continue # a rehearsal has one
    runs+=("BERT=$done/pretrained/BERT/seed-$seed" "BERT, NLI=$done/sentences/BERT/seed-$seed")
    runs+=("BERT, triplets=$done/sentences/BERT-triplets/seed-$seed")
    runs+=("BERT, ranking=$done/sentences/BERT-ranking/seed-$seed")
done
"$root/.venv/bin/python" "$root/tools/sentence_vectors.py" --out scores --vectors data/glove50/glove*.txt \
    --sets data/sts/201[2345] data/stsb_labelled data/sick/SICK_test_annotated.txt --runs "${runs[@]}"
"$root/.venv/bin/python" "$root/tools/score_dots.py" scores/results.csv --panel set --row row --value spearman --out scores/scores.png
