# Sourced by env.sh: a run's life as jobs. What decides is `python -m gpt1_ds slurm begin|end|verdict`; this file only
# starts processes and passes words on.
# shellcheck shell=bash disable=SC2154

check() { # FOLDER: a minute on every node before hours on all of them; says which hosts are bad
  rm -f -- "$1"/health-*.json
  meet
  timeout 180 srun --ntasks-per-node="${SLURM_NTASKS_PER_NODE:-1}" "${step_options[@]}" "${program[@]}" \
    slurm node --ranks "$ranks_per_node" slurm health "$1" >&2 || true
  local hosts
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  once slurm verdict "$1" "${hosts[@]}" >&2
}

train() { # VERB WORD...: from the allocation to the job's exit code
  if [ -z "$job" ]; then
    exec "${program[@]}" "$@" --nproc "${NPROC:-$ranks_per_node}"
  fi
  local folder verdict code=0 status=0 ended=''
  folder=$(once slurm begin --job "$job" --restart "${SLURM_RESTART_COUNT:-0}" \
    --world $((SLURM_NNODES * ranks_per_node)) "$@") || exit
  trap 'touch -- "$folder/STOP.$job"' USR1                # the limit is near, or somebody asks: save and hand over
  trap 'ended=cancelled; touch -- "$folder/STOP.$job"' TERM # scancel and preemption: save if there is time
  meet
  limit
  echo "job $job on $SLURM_JOB_NODELIST: ranks meet at $MASTER_ADDR:$MASTER_PORT"
  [ "$health_check" = 0 ] || check "$folder/slurm" || exit
  if [ -n "$stage_to" ]; then
    every_node slurm stage --to "$stage_to" "$@" || exit
    export GPT1_DS_STAGE=$stage_to
  fi
  every_node slurm node --ranks "$ranks_per_node" "$@" &
  while :; do # a trap ends `wait`, not the ranks
    wait $! && status=0 || status=$?
    kill -0 $! 2>/dev/null || break
  done
  verdict=$(once slurm end "$folder" --job "$job" --restart "${SLURM_RESTART_COUNT:-0}" --status "$status" \
    --max-tries "$max_tries") || code=$?
  [ "$verdict" != continue ] || [ -n "$ended" ] || hand_over "${@:2}"
  exit "$code"
}

hand_over() { # WORD...: the next job: a successor with the same options, or this one again
  trap '' USR1 TERM # requeueing sends TERM to this script, which has nothing left to stop
  case $continuation in
    successor) # a singleton: it waits for this one; what is of this job alone is not handed down
      env -u MASTER_ADDR -u MASTER_PORT -u GPT1_DS_DEADLINE -u GPT1_DS_STAGE sbatch "${options[@]}" "$0" "$@" ;;
    requeue) scontrol requeue "$task" ;;
  esac
}
