# shellcheck shell=bash disable=SC2034 # what is set here is used there
# Sourced by the experiments on a shelf of novels, with their arguments FOLDER_OF_NOVELS TASKS OUT: makes the environment,
# enters OUT and sets root, books and tasks. OUT holds the data and the runs; the same command resumes. REHEARSE=10 tries all
# of it at a tenth of its size in OUT-rehearsal, where the folder of `study NAME` is runs/NAME$part.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
books=$(realpath -m "$1")
tasks=$(realpath -m "$2")
part=${REHEARSE:+-rehearsal}
ls "$books"/*.txt >/dev/null 2>&1 || { echo "$1: no .txt in this folder; name one with novels" >&2; exit 2; }
[ -d "$tasks" ] || { echo "$2: no such folder; name the one that holds the tasks" >&2; exit 2; }
bash "$root/tools/setup.sh"
mkdir -p "$3$part/data"
cd "$3$part" || exit
gpt1() { echo; echo "\$ gpt1-ds $*"; "$root/.venv/bin/gpt1-ds" "$@"; }
link() { for name in "$@"; do ln -sfn "$tasks/$name" "data/$name"; done; }
among() { # "ONE TWO" WORD...: whether each word is a part that there is
  local known=$1 name
  shift
  for name in "$@"; do
    case " $known " in *" $name "*) ;; *) echo "$name: no such part; choose among $known" >&2; exit 2 ;; esac
  done
}
study() { gpt1 finetune study "finetune/study/$1" ${REHEARSE:+--rehearse "$REHEARSE"}; }
shelf() { # shelf/ has all novels but every twentieth, which lie in data/held_out for the probe next_sentence
  mkdir -p shelf data/held_out
  local file place number=0
  for file in "$books"/*.txt; do
    [ $((number++ % 20)) -eq 10 ] && place=data/held_out || place=shelf
    ln -sfn "$file" "$place/"
  done
}
