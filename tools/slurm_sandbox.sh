#!/usr/bin/env bash
# A real SLURM of two nodes on this machine, for trying and testing: slurmctld, two slurmd and munge, all in one folder.
#   tools/slurm_sandbox.sh up [FOLDER]      then: export SLURM_CONF=FOLDER/slurm.conf, which it prints
#   tools/slurm_sandbox.sh down [FOLDER]    unless given, that of SLURM_CONF
# FOLDER is a new one of a random name in TMPDIR unless given; nothing outside it is touched. Needs slurm-wlm and munge
# (Debian: apt-get install slurm-wlm munge). SANDBOX_NODES (2) and SANDBOX_CPUS (cores of a node, 2) may be set.
set -euo pipefail

user=$(id -un)
folder=${2:-}
nodes=${SANDBOX_NODES:-2}

need() {
  local program
  for program in munged slurmctld slurmd sbatch; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null && continue
    echo "$program is not installed; on Debian: apt-get install slurm-wlm munge" >&2
    exit 2
  done
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

refuse() { echo "$1" >&2; exit 2; }

configure() {
  local socket=$folder/spool/node$nodes/node${nodes}_99999.4294967291 # of a job's script: where it is too long, jobs are held
  [ ${#socket} -lt 108 ] || refuse "$folder: is too long by $((${#socket} - 107)) characters for SLURM's sockets; name a shorter one"
  mkdir -p "$folder"
  [ -O "$folder" ] || refuse "$folder: is another person's; name a folder of your own"
  mkdir -p "$folder"/{state,log,spool}
  chmod 755 "$folder"
  (umask 077; head -c 1024 /dev/urandom >"$folder/munge.key")
  {
    cat <<CONF
ClusterName=sandbox
FirstJobId=$((1 + $$ % 180 * 100)) # ranks meet at a port of the job's number, and sandboxes share a host
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=0
ReturnToService=2
SlurmdTimeout=20
KillWait=30
JobRequeue=1
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
CONF
    local node
    for ((node = 1; node <= nodes; node++)); do
      echo "NodeName=node$node NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$(free_port) CPUs=${SANDBOX_CPUS:-2} State=UNKNOWN"
    done
    echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
  } >"$folder/slurm.conf"
}

start_node() { slurmd -N "$1" -f "$folder/slurm.conf"; }

up() {
  need
  [ -n "$folder" ] || folder=$(mktemp -d "${TMPDIR:-/tmp}/gpt1-ds-slurm-XXXXXXXXXX")
  [ -e "$folder/slurmctld.pid" ] && refuse "$folder: is up already; take it down first"
  configure
  export SLURM_CONF=$folder/slurm.conf PATH=$PATH:/usr/sbin
  munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --seed-file="$folder/munge.seed" --log-file="$folder/log/munged.log"
  slurmctld -f "$folder/slurm.conf"
  local node
  for ((node = 1; node <= nodes; node++)); do start_node "node$node"; done
  for _ in $(seq 60); do
    [ "$(sinfo --noheader --Node --states=idle --format=%N 2>/dev/null | wc -l)" = "$nodes" ] && break
    sleep 0.5
  done
  sinfo --Node --long
  echo "export SLURM_CONF=$folder/slurm.conf"
}

down() {
  [ -n "$folder" ] || folder=$(dirname "${SLURM_CONF:?names no sandbox; say which FOLDER}")
  [ -d "$folder" ] || return 0
  grep --quiet '^ClusterName=sandbox$' "$folder/slurm.conf" || refuse "$folder: holds no sandbox"
  export SLURM_CONF=$folder/slurm.conf
  scancel --user="$user" --quiet 2>/dev/null || true
  local file
  for file in "$folder"/slurmd-*.pid "$folder/slurmctld.pid" "$folder/munged.pid"; do
    if [ -e "$file" ]; then kill "$(cat "$file")" 2>/dev/null || true; fi
  done
  for _ in $(seq 40); do
    pgrep --full -- "$folder/slurm.conf" >/dev/null || break
    sleep 0.25
  done
  pkill --signal KILL --full -- "$folder/slurm.conf" || true
  rm -rf "$folder"
}

case ${1:-} in
  up) up ;;
  down) down ;;
  node) export SLURM_CONF=$folder/slurm.conf PATH=$PATH:/usr/sbin; start_node "$3" ;;
  *) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
