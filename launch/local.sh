#!/usr/bin/env bash
# All ranks of this machine, without SLURM: bash launch/local.sh COMMAND [-c FILE ...] [key=value ...]
# NPROC ranks, by default one per GPU, or one per two CPU cores where there is none.
set -euo pipefail
gpus=$({ nvidia-smi --list-gpus 2>/dev/null || true; } | grep -c '^GPU' || true) # it may be there without a driver
cores=$(nproc)
program=(gpt1-ds) own=${BASH_SOURCE[0]%/*}/../.venv/bin/gpt1-ds # what tools/setup.sh made
command -v gpt1-ds >/dev/null || [ ! -x "$own" ] || program=("$own")
exec "${program[@]}" "$@" --nproc "${NPROC:-$((gpus > 0 ? gpus : cores > 1 ? cores / 2 : 1))}"
