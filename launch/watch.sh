#!/usr/bin/env bash
# On a node of a job with spare nodes: bash watch.sh JOB HOST. SLURM leaves such a job alone when its first node, HOST,
# dies: without its script, and with all other nodes until the time limit. This starts it again, or else ends it.
set -euo pipefail
trap '' USR1 # the whole job is asked to hand over
while sleep 30; do
  state=$(scontrol --oneliner show job "$1") || continue
  [[ $state == *" JobState=RUNNING "* ]] || continue # it ends with its job
  nodes=$(sed -n 's/.* NodeList=\([^ ]*\).*/\1/p' <<<"$state")
  hosts=$(scontrol show hostnames "$nodes") || continue
  ! grep -qxF "$2" <<<"$hosts" || continue
  if [[ $state == *" Requeue=0 "* ]]; then scancel "$1"; else scontrol requeue "$1" || true; fi
done
