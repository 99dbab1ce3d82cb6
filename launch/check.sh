#!/usr/bin/env bash
# Inside an allocation, for `gpt1-ds slurm check`: bash check.sh FOLDER WORD...
# First the health of every node; where they have GPUs then the self-proof on all of them, which leaves its report in
# FOLDER. The arguments are those of `slurm prove`.
# shellcheck source=launch/env.sh
. "$(dirname "$0")/env.sh"
check "$1"
[ "${SLURM_GPUS_ON_NODE:-0}" != 0 ] || exit 0
timeout 480 srun --ntasks-per-node="${SLURM_NTASKS_PER_NODE:-1}" ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} --kill-on-bad-exit=1 "${step_options[@]}" \
  "${program[@]}" "${node[@]}" slurm prove "$@" >&2 && exit || code=$?
echo "the self-proof ended with $code (124: it hung); slurm.environment={NCCL_DEBUG: INFO} makes NCCL say more" >&2
exit "$code"
