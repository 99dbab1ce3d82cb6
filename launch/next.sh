# Sourced by env.sh: from one job of a run to the next, as `python -P -m gpt1_ds slurm begin|end` decided.
# shellcheck shell=bash disable=SC2154

follow() { # VERDICT WORD...: `stop`, `continue`, or `again FAULTS SECONDS NODES` after a fault of the world
  local what faults seconds nodes
  read -r what faults seconds nodes < <(printf '%s\n' "$1")
  case $what in
    continue) unset GPT1_DS_FAULTS && hand_over '' '' "${@:2}" ;;
    again) GPT1_DS_FAULTS=$faults hand_over "$seconds" "$nodes" "${@:2}" ;;
  esac
}

hand_over() { # SECONDS NODES WORD...: the next job: a successor with the same options, or this one again
  trap '' USR1 TERM # requeueing sends TERM to this script, which has nothing left to stop
  local later=${1:+now+$1} avoid=$2 other=()
  mail_at_the_end NONE # of this job: it is not the run's
  avoid=$(printf '%s\n' "${options[@]}" | sed -n 's/^--exclude=\(.*\)/\1,/p' | tail -n 1)$avoid # the user's, too
  case $continuation in
    successor)
      [ -z "$2" ] || other=("--exclude=$avoid")
      GPT1_DS_AVOID=$2 successor ${later:+"--begin=$later"} "${other[@]}" "$0" "${@:3}" && return
      GPT1_DS_AVOID='' successor ${later:+"--begin=$later"} "$0" "${@:3}" && return ;; # no nodes are left: on any, again
    requeue)
      requeued=yes
      scontrol requeue "$task" || requeued='' ;; # not in an allocation of salloc, nor where the site forbids it
  esac
  mail_at_the_end "$mails"
  [ -n "${requeued:-}" ] || { echo "job $job: has no next job; what was saved is kept: start the same again" >&2 || true; return 0; }
  [ -z "$later" ] || scontrol update "JobId=$task" "StartTime=$later" ${2:+"ExcNodeList=$avoid"} ||
    scontrol update "JobId=$task" "StartTime=$later"
}

mail_at_the_end() { [ -z "$mails" ] || scontrol update "JobId=$task" "MailType=$1" || true; } # TYPES

successor() { # a singleton: it waits for this job; what is of this job alone is not handed down, as SLURM itself would
  local next follower waits
  next=$(env -u MASTER_ADDR -u MASTER_PORT -u GPT1_DS_DEADLINE -u GPT1_DS_STAGE -u GPT1_DS_RUN -u SLURM_RESTART_COUNT \
    GPT1_DS_CONTINUES=1 sbatch --parsable "${options[@]}" "$@") || return # what had to begin anew has done so
  next=${next%%;*}
  echo "job $next continues this one" || true # its disk may be full
  while read -r follower waits; do # they wait for the run's end, not for this job's
    waits=$(sed -E "s/:$job([:,?]|\$)/:$next\\1/g" <<<"$waits")
    scontrol update "JobId=$follower" "Dependency=$waits" || true
  done < <(followers)
}

followers() { # a line of each job that waits for this one to end well: JOB DEPENDENCIES
  squeue --me --noheader --states=PENDING --format='%i %E' | sed 's/([^)]*)//g' |
    grep -E "^[^ ]+ (.*,)?afterok:([0-9_]+:)*$job([:,?]|\$)" || true
}

forsaken() { # [cancelled]: at the end of a job that did not end well, and that no other continues
  [ -z "${requeued:-}" ] || return 0
  local follower waits fate=${1:+was cancelled or preempted, and will run only if SLURM queues that one again}
  while read -r follower waits; do
    echo "job $follower waits for job $job, which ${fate:-did not end well, and will not run}" >&2 || true
  done < <(followers)
}
