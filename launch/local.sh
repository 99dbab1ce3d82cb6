#!/usr/bin/env bash
# All ranks of this machine, without SLURM: bash launch/local.sh COMMAND [-c FILE ...] [key=value ...]
# NPROC ranks, by default one per GPU, or one per two CPU cores where there is none.
set -euo pipefail
gpus=$({ nvidia-smi --list-gpus 2>/dev/null || true; } | grep -c '^GPU' || true) # it may be there without a driver
cores=$(nproc)
exec gpt1-ds "$@" --nproc "${NPROC:-$((gpus > 0 ? gpus : cores > 1 ? cores / 2 : 1))}"
