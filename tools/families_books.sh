#!/usr/bin/env bash
# GPT-1, GPT-2, BERT and RoBERTa on one shelf of novels with equal FLOPs: bash tools/families_books.sh FOLDER_OF_NOVELS TASKS [OUT]
# Tokenizers, datasets, four pre-trainings, their zero-shot scores on minimal pairs, a fine-tuning study with controls, and the
# curves on one page. About three hours on two cores; the same command resumes. TASKS is a folder that this has
# filled: gpt1-ds data fetch --out TASKS sst2_sentences snli blimp
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
# shellcheck source=tools/on_novels.sh
. "$(dirname "$0")/on_novels.sh" "$1" "$2" "${3:-families-books}"
train() { # NAME PRESET DATASET TOKENS
    gpt1 pretrain -c "pretrain/$2" run.name="$1" data.path="data/$3" train.tokens=$(($4 / ${REHEARSE:-1})) train.precision=fp32 --nproc 2
    [ -e "runs/$1/blimp.json" ] || gpt1 evaluate --checkpoint "runs/$1" --out "runs/$1/blimp.json" \
        probes="[{name: blimp, path: data/blimp, limit: $((6700 / ${REHEARSE:-1}))}]"
}

[ -d tok_bpe ] || gpt1 tokenizer train --input "$books" --out tok_bpe --vocab-size 8000 --unwrap
[ -d tok_bytes ] || gpt1 tokenizer train --input "$books" --out tok_bytes --model gpt2-bpe --masks --vocab-size 8000 --unwrap
[ -d tok_wordpiece ] || gpt1 tokenizer train --input "$books" --out tok_wordpiece --model wordpiece --vocab-size 8000 --unwrap
gpt1 data build --input "$books" --tokenizer tok_bpe --out data/bpe --unwrap --validation 0.05
for kind in bytes wordpiece; do
    gpt1 data build --input "$books" --tokenizer "tok_$kind" --out "data/$kind" --unwrap --validation 0.05 --sentences
done
link sst2_sentences snli blimp
# 22.19 MFLOPs a token with rows of 256 tokens, 12.87 with rows of 64 of which 15 % are predicted: as many FLOPs.
train gpt1 books_cpu bpe 3999744
train gpt2 gpt2_books_cpu bytes 3999744
train bert bert_books_cpu wordpiece 6897664
train roberta roberta_books_cpu bytes 6897664
study families_books
gpt1 report runs/gpt1 runs/gpt2 runs/bert runs/roberta --out report
