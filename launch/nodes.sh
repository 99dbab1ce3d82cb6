# Sourced by env.sh: the nodes of a job: a health check and, where it has more of them than its ranks
# need (slurm.spare_nodes), those that ranks are on.
# shellcheck shell=bash disable=SC2034,SC2154
out='' chosen='' watch='' losses=() # nodes that ranks do not start on any more, those that they are on; what `gone` found
where=() here=() # options of srun: for the nodes that ranks are on, and for the one that this script runs on
# a step whose node died does not end for SLURM, so that those after it share what it holds
[ "$spare_nodes" = 0 ] || here=(--overlap "--nodelist=${SLURMD_NODENAME:-}")
first_node=() # what starts one process on this job's first node, in the container if there is one
[ ${#step_options[@]} = 0 ] || first_node=(srun --nodes=1 --ntasks=1 "${here[@]}" "${step_options[@]}")
once() { "${first_node[@]}" "${program[@]}" "$@"; } # WORD...

nodes_left() { # the job's nodes without those that are out, one in a line
  local all
  all=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || return
  grep -vxFf <(printf '%s\n' "${out//,/$'\n'}") <<<"$all" || true
}

settle() { # ranks start on the first nodes that are left
  [ "$spare_nodes" != 0 ] || return 0
  local count=$((SLURM_NNODES - spare_nodes)) nodes
  mapfile -t nodes < <(nodes_left)
  chosen=$(IFS=,; echo "${nodes[*]:0:count}")
  where=(--overlap "--nodes=$count" "--ntasks=$((count * ${SLURM_NTASKS_PER_NODE:-1}))" "--nodelist=$chosen")
  [ -z "$watch" ] || ! kill -0 "$watch" 2>/dev/null || return 0
  srun --overlap --nodes=1 --ntasks=1 "--nodelist=${nodes[-1]}" bash "${BASH_SOURCE[0]%/*}/watch.sh" "$task" "$SLURMD_NODENAME" &>/dev/null &
  watch=$!
}

gone() { # after ranks that failed, what `slurm end` is told: those of their nodes that are gone, and how many spares are left
  [ "$spare_nodes" != 0 ] || return 0
  local all silent unwanted lost left
  all=$(nodes_left)
  # a step, because SLURM itself learns of a dead host after minutes only; on a dead host it takes ten seconds
  # shellcheck disable=SC2016
  silent=$(xargs -P 32 -I {} sh -c \
    'timeout 60 srun --overlap --nodes=1 --ntasks=1 --nodelist="$0" true 2>/dev/null || echo "$0"' {} <<<"$all")
  ! grep -qxF "$SLURMD_NODENAME" <<<"$silent" || silent='' # which this script runs on: SLURM's controller is in trouble
  unwanted=$(sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --states=down,drain,fail --format=%N) || true
  lost=$(grep -xFf <(printf '%s\n' "$silent" "$unwanted") <<<"$all") || true
  out=$out,${lost//$'\n'/,}
  left=$(nodes_left | wc -l)
  lost=$(grep -xFf <(printf '%s\n' "${chosen//,/$'\n'}") <<<"$lost") || true
  losses=(--lost "${lost//$'\n'/,}" --spares $((left - SLURM_NNODES + spare_nodes)))
}

check() { # FOLDER [SPARES]: a minute on every node before hours on all of them; says which hosts are bad. So many of
  # them may be, and are out then
  rm -f -- "$1"/health-*.json
  meet
  timeout 180 srun --ntasks-per-node="${SLURM_NTASKS_PER_NODE:-1}" ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} "${step_options[@]}" "${program[@]}" \
    "${node[@]}" slurm health "$1" >&2 || true
  local hosts
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  out=$(once slurm verdict --spares "${2:-0}" "$1" "${hosts[@]}")
}
