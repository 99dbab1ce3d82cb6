# Sourced by the batch scripts: how the program starts in an allocation. job.sh beside it holds the settings of `slurm submit`.
# shellcheck shell=bash disable=SC2034
set -euo pipefail

prefix=() step_options=() options=() python=(python)
ranks_per_node=${SLURM_GPUS_ON_NODE:-1} launcher=torchrun
continuation=requeue # of a script that was given to sbatch by hand, because only SLURM knows its options
max_tries=100 pause=60 poor_tries=3 restarts=20 warning=300 spare_nodes=0 health_check=0 stage_to='' mails=''
[ ! -x "${SLURM_SUBMIT_DIR:-.}/.venv/bin/python" ] || python=("${SLURM_SUBMIT_DIR:-.}/.venv/bin/python")
setup_line() { # STATUS NUMBER, after each line of slurm.setup: training in what is left of an environment helps nobody
  [ "$1" = 0 ] || { echo "slurm.setup: line $2 ended with status $1; correct it, or add || true where that is fine" >&2; exit 2; }
}
set +eu # modules and conda read variables that nobody set, and their own commands may fail
# shellcheck source=/dev/null
[ ! -e "${BASH_SOURCE[0]%/*}/job.sh" ] || . "${BASH_SOURCE[0]%/*}/job.sh"
set -eu
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE # of the shell that submitted: with them every task trains alone, as rank 0 of 1
program=("${prefix[@]}" "${python[@]}" -P -m gpt1_ds) # -P: no file of the current folder stands in for a library
node=(slurm node --ranks "$ranks_per_node" --launcher "$launcher") # what starts ranks on each node
job=${SLURM_JOB_ID:-} # every task of an array has its own, but to SLURM's commands one of them is the whole array
task=${SLURM_ARRAY_JOB_ID:-$job}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1 NCCL_DEBUG=${NCCL_DEBUG:-WARN}
[ -z "${SLURM_STEP_ID:-}" ] || export SLURM_OVERLAP=1 # the shell of a step (srun --pty bash) holds the cores that others would wait for

every_node() { # WORD...: the program, one task per node that ranks are on (or one per rank); a task that fails ends the others
  srun "${where[@]}" --ntasks-per-node="${SLURM_NTASKS_PER_NODE:-1}" --kill-on-bad-exit=1 --wait=60 \
    ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} "${step_options[@]}" "${program[@]}" "$@"
}

given_address=${MASTER_ADDR:-} given_port=${MASTER_PORT:-}
case $given_address in localhost | 127.* | ::1) [ "${SLURM_NNODES:-1}" = 1 ] || given_address='' ;; esac # each node's own
meet() { # [RESTART]: where ranks find each other: only scontrol knows, and containers do not have it. After a restart it
  # is another port: on the old one ranks may still live, or sockets wait for their end
  local host
  host=$(nodes_left)
  host=${host%%$'\n'*}
  getent hosts "$host" >/dev/null || host=$(scontrol show node "$host" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
  export MASTER_ADDR=${given_address:-$host}
  export MASTER_PORT=${given_port:-$((10000 + (SLURM_JOB_ID + 4999 * ${1:-0}) % 20000))}
}

limit() { # when ranks hand over by themselves, in seconds since 1970, should the warning not come
  local end=${SLURM_JOB_END_TIME:-} found
  if [ -z "$end" ]; then
    found=$(scontrol show job "$task" | sed -n 's/.*EndTime=\([^ ]*\).*/\1/p') || return 0
    [ -n "$found" ] || return 0 # `date -d ""` is last midnight
    end=$(date +%s -d "$found") || return 0
  fi
  export GPT1_DS_DEADLINE=$((end - warning / 2))
} 2>/dev/null

# shellcheck source=launch/nodes.sh
. "${BASH_SOURCE[0]%/*}/nodes.sh"
# shellcheck source=launch/stage.sh
. "${BASH_SOURCE[0]%/*}/stage.sh"
# shellcheck source=launch/life.sh
. "${BASH_SOURCE[0]%/*}/life.sh"
# shellcheck source=launch/next.sh
. "${BASH_SOURCE[0]%/*}/next.sh"
