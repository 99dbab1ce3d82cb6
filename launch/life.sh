# Sourced by env.sh: a run's life as jobs. What decides is `python -P -m gpt1_ds slurm begin|end|verdict`; this file only
# starts processes and passes arguments on, next.sh starts the next job.
# shellcheck shell=bash disable=SC2154

train() { # VERB WORD...: from the allocation to the job's exit code
  if [ -z "$job" ]; then
    exec "${program[@]}" "$@" --nproc "${NPROC:-$ranks_per_node}"
  fi
  local folder verdict code=0 status=0 ended='' trapped='' again=0 what bad chain
  chain=(--job "$job" --restart "${SLURM_RESTART_COUNT:-0}" --faults "${GPT1_DS_FAULTS:-0}"
    --avoid "${GPT1_DS_AVOID:-}" --pause "$pause" --max-tries "$max_tries" --poor-tries "$poor_tries"
    --restarts "$restarts" --launcher "$launcher")
  folder=$(once slurm begin "${chain[@]}" --world $(((SLURM_NNODES - spare_nodes) * ranks_per_node)) "$@") || {
    code=$?
    [ $code != 75 ] || follow "$folder" "${@:2}" # which is not the folder then
    forsaken
    exit $code
  }
  export GPT1_DS_RUN=$folder # where what is started from here on writes down a fault
  trap 'trapped=1; touch -- "$folder/STOP.$job"' USR1 # the limit is near, or somebody asks: save and hand over
  trap 'trapped=1 ended=cancelled; touch -- "$folder/STOP.$job"' TERM INT # scancel, preemption, Ctrl-C: save if there is time
  limit
  [ "$health_check" = 0 ] || check "$folder/slurm" "$spare_nodes" || status=1
  while :; do
    settle
    [ $status != 0 ] || staged "$@" || status=1
    [ $status != 0 ] || ranks "$folder" "$again" "$@"
    [ $status = 0 ] || gone
    verdict=$(once slurm end "$folder" "${chain[@]}" ${ended:+--restarts=0} "${losses[@]}" --status "$status") && code=0 || code=$?
    read -r what bad <<<"$verdict"
    if [ "$what" != here ] || [ -n "$ended" ]; then break; fi
    out=$out,$bad status=0 again=$((again + 1)) # all ranks begin again, from the last checkpoint
  done
  [ -n "$ended" ] || { [ "$verdict" != stop ] || unstaged "$@"; follow "$verdict" "${@:2}"; }
  [ "$code" = 0 ] || forsaken "$ended"
  exit "$code"
}

ranks() { # FOLDER RESTART VERB WORD...: on every node; sets `status`, a variable of `train` as `trapped` is
  meet "$2"
  echo "job $job on ${chosen:-$SLURM_JOB_NODELIST}: ranks meet at $MASTER_ADDR:$MASTER_PORT" || true # its disk may be full
  { every_node "${node[@]}" "${@:3}" 2>&1 >&3 | keep "$1/slurm/ended-$job.txt"; } 3>&1 & # a pipe: `wait` is for `keep` too
  trapped=1
  while [ -n "$trapped" ]; do # a trap ends `wait` with a status of its own; the next one has that of the ranks
    trapped=''
    wait $! && status=0 || status=$?
  done
}

keep() { # FILE: pass on what comes, and keep what launchers say of ranks that ended badly; full disks end nothing
  sed -un -e 'w /dev/stderr' -e '/^srun: error: .*: tasks\? \|^gpt1-ds: rank [0-9]* on /p' >"$1" || cat >&2 || cat >/dev/null
}

failed() { # STATUS of the program, which this returns: say so where the node lacks it
  local way="\`${python[*]} -P -m gpt1_ds\` does not start: correct slurm.setup, or submit from the folder that has .venv/"
  [[ $1 != @(1|2|126|127) ]] || "${first_node[@]}" "${prefix[@]}" "${python[@]}" -P -c 'import gpt1_ds' &>/dev/null ||
    echo "job $job: on ${SLURMD_NODENAME:-this host} $way" >&2 || true
  return "$1"
}
