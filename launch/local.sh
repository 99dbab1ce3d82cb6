#!/usr/bin/env bash
# All ranks of this machine, without SLURM: bash launch/local.sh COMMAND [-c FILE ...] [key=value ...]
# NPROC ranks, by default one per GPU, or one per two CPU cores where there is none.
set -euo pipefail
gpus=$(command -v nvidia-smi >/dev/null && nvidia-smi --list-gpus 2>/dev/null | wc -l || echo 0)
cores=$(nproc)
exec gpt1-ds "$@" --nproc "${NPROC:-$((gpus > 0 ? gpus : cores > 1 ? cores / 2 : 1))}"
