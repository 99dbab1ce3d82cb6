# Sourced by env.sh: copies of the data on the disk of each node of a job, for as long as its run lasts.
# shellcheck shell=bash disable=SC2154

staged='' # the nodes that have them

staged() { # VERB WORD...: before the ranks; what cannot be copied is read where it is
  [ -n "$stage_to" ] && [ "$staged" != "on ${where[*]}" ] || return 0
  every_node slurm stage --to "$stage_to" "$@" && export GPT1_DS_STAGE=$stage_to && staged="on ${where[*]}"
}

unstaged() { # VERB WORD...: after a run's last job; what the waiting tasks of its array will read stays
  [ -n "${GPT1_DS_STAGE:-}" ] || return 0
  local keep=()
  [ -z "${SLURM_ARRAY_JOB_ID:-}" ] ||
    [ -z "$(squeue --noheader --states=PENDING --jobs="$SLURM_ARRAY_JOB_ID" 2>/dev/null)" ] || keep=(--keep)
  every_node slurm unstage --to "$stage_to" "${keep[@]}" "$@" || true
}
