# Sourced by env.sh: a run's life as jobs. What decides is `python -P -m gpt1_ds slurm begin|end|verdict`; this file only
# starts processes and passes words on, next.sh starts the next job.
# shellcheck shell=bash disable=SC2154

check() { # FOLDER: a minute on every node before hours on all of them; says which hosts are bad
  rm -f -- "$1"/health-*.json
  meet
  timeout 180 srun --ntasks-per-node="${SLURM_NTASKS_PER_NODE:-1}" ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} "${step_options[@]}" "${program[@]}" \
    slurm node --ranks "$ranks_per_node" slurm health "$1" >&2 || true
  local hosts
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  once slurm verdict "$1" "${hosts[@]}" >&2
}

train() { # VERB WORD...: from the allocation to the job's exit code
  if [ -z "$job" ]; then
    exec "${program[@]}" "$@" --nproc "${NPROC:-$ranks_per_node}"
  fi
  local folder verdict code=0 status=0 ended='' chain
  chain=(--job "$job" --restart "${SLURM_RESTART_COUNT:-0}" --faults "${GPT1_DS_FAULTS:-${SLURM_RESTART_COUNT:-0}}"
    --avoid "${GPT1_DS_AVOID:-}" --pause "$pause" --max-tries "$max_tries" --poor-tries "$poor_tries" --restarts "$restarts")
  folder=$(once slurm begin "${chain[@]}" --world $((SLURM_NNODES * ranks_per_node)) "$@") || {
    code=$?
    [ $code != 75 ] || follow "$folder" "${@:2}" # which is not the folder then
    forsaken
    exit $code
  }
  export GPT1_DS_RUN=$folder # where what is started from here on leaves word of a fault
  trap 'touch -- "$folder/STOP.$job"' USR1                # the limit is near, or somebody asks: save and hand over
  trap 'ended=cancelled; touch -- "$folder/STOP.$job"' TERM # scancel and preemption: save if there is time
  meet
  limit
  echo "job $job on $SLURM_JOB_NODELIST: ranks meet at $MASTER_ADDR:$MASTER_PORT" || true # its disk may be full
  prepared "$folder" "$@" || status=1
  while :; do
    [ $status != 0 ] || ranks "$@"
    verdict=$(once slurm end "$folder" "${chain[@]}" --status "$status") && code=0 || code=$?
    if [ "$verdict" != here ] || [ -n "$ended" ]; then break; fi
    status=0 # a rank was lost: all of them begin again, from the last checkpoint
  done
  [ -n "$ended" ] || follow "$verdict" "${@:2}"
  [ "$code" = 0 ] || forsaken "$ended"
  exit "$code"
}

ranks() { # VERB WORD...: on every node; sets `status`, which is a variable of `train`
  every_node slurm node --ranks "$ranks_per_node" "$@" &
  while :; do # a trap ends `wait`, not the ranks
    wait $! && status=0 || status=$?
    kill -0 $! 2>/dev/null || break
  done
}

prepared() { # FOLDER VERB WORD...: what comes before the ranks
  [ "$health_check" = 0 ] || check "$1/slurm" || return
  [ -n "$stage_to" ] || return 0
  every_node slurm stage --to "$stage_to" "${@:2}" && export GPT1_DS_STAGE=$stage_to
}
