# Sourced by env.sh: the nodes of a job, their health and, where there are spare ones (slurm.spare_nodes), those that ranks are on.
# shellcheck shell=bash disable=SC2016,SC2034,SC2154
out='' chosen='' watch='' losses=() # nodes that ranks do not start on any more, those that they are on; what `gone` found
where=() here=() # options of srun: for the nodes that ranks are on, and for the one that this script runs on
# a step whose node died does not end for SLURM, so that those after it share what it holds
[ "$spare_nodes" = 0 ] || here=(--overlap "--nodelist=${SLURMD_NODENAME:-}")
first_node=() # what starts one process on this job's first node, in the container if there is one
[ ${#step_options[@]} = 0 ] || first_node=(srun --nodes=1 --ntasks=1 "${here[@]}" "${step_options[@]}")
once() { "${first_node[@]}" "${program[@]}" "$@" || failed $?; } # WORD...

nodes_left() { # the job's nodes without those that are out, one in a line
  local all
  all=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || return
  grep -vxFf <(printf '%s\n' "${out//,/$'\n'}") <<<"$all" || true
}

on() { # COUNT: steps are on so many of the nodes that are left
  local nodes
  mapfile -t nodes < <(nodes_left)
  chosen=$(IFS=,; echo "${nodes[*]:0:$1}")
  where=(--overlap "--nodes=$1" "--ntasks=$(($1 * ${SLURM_NTASKS_PER_NODE:-1}))" "--nodelist=$chosen")
}

settle() { # ranks start on the first nodes that are left
  [ "$spare_nodes" != 0 ] || return 0
  on $((SLURM_NNODES - spare_nodes))
  [ -z "$watch" ] || ! kill -0 "$watch" 2>/dev/null || return 0
  srun --overlap --nodes=1 --ntasks=1 "--nodelist=$(nodes_left | tail -n 1)" bash "${BASH_SOURCE[0]%/*}/watch.sh" "$task" "$SLURMD_NODENAME" &>/dev/null &
  watch=$!
}

dead() { # those of the job's nodes that are left on which no step starts: SLURM itself learns of a dead host after minutes
  # only, a step there takes ten seconds. None, where this script runs on one: then SLURM's controller is in trouble
  local found
  found=$(nodes_left | xargs -P 32 -I {} sh -c \
    'timeout 60 srun --overlap --nodes=1 --ntasks=1 --nodelist="$0" true 2>/dev/null || echo "$0"' {})
  grep -qxF "$SLURMD_NODENAME" <<<"$found" || echo "$found"
}

gone() { # after ranks that failed, what `slurm end` is given: those of their nodes that are gone, and how many spares are left
  [ "$spare_nodes" != 0 ] || return 0
  local lost left
  lost=$(nodes_left | grep -xFf <(dead; sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --states=down,drain,fail --format=%N)) || true
  out=$out,${lost//$'\n'/,}
  left=$(nodes_left | wc -l)
  lost=$(grep -xFf <(printf '%s\n' "${chosen//,/$'\n'}") <<<"$lost") || true
  losses=(--lost "${lost//$'\n'/,}" --spares $((left - SLURM_NNODES + spare_nodes)))
}

check() { # FOLDER [SPARES]: a minute on every node before hours on all of them; bad hosts are out, SPARES of them at most
  local hosts
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  rm -f -- "$1"/health-*.json
  [ "${2:-0}" = 0 ] || { out=$(dead | paste -sd ,); on "$(nodes_left | wc -l)"; } # with a dead node a step on all of them starts on none
  meet
  timeout 180 srun "${where[@]}" --ntasks-per-node="${SLURM_NTASKS_PER_NODE:-1}" ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} "${step_options[@]}" \
    "${program[@]}" "${node[@]}" slurm health "$1" >&2 || true
  out=$(once slurm verdict --spares "${2:-0}" "$1" "${hosts[@]}")
}
