#!/usr/bin/env bash
# What a fine-tuning study's numbers come from, in one small file: bash tools/pack_study.sh RUN_DIR STUDY OUT.tar.xz
# Configurations, scores, predictions and curves of every trial and model, without checkpoints and logs. Unpacked in another
# RUN_DIR, `gpt1-ds report RUN_DIR/STUDY` draws the page again, and `gpt1-ds finetune study` trains only what is missing.
set -euo pipefail
[ $# -eq 3 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
[ -f "$1/$2/study.json" ] || { echo "$1/$2: no fine-tuning study; name the run.dir, then the study" >&2; exit 2; }
tar --create --directory "$1" --sort=name --owner=0 --group=0 --mtime=@0 \
  --exclude=checkpoints --exclude=logs --exclude=tokenizer --exclude=wandb --exclude=beats --exclude=slurm --exclude=figures --exclude='.*' \
  --exclude='*.html' "$2" | xz -9 --stdout >"$3.tmp"
mv "$3.tmp" "$3"
