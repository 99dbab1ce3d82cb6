# shellcheck shell=bash disable=SC2034 # what is set here is used there
# Sourced by the experiments on a shelf of novels, with their arguments FOLDER_OF_NOVELS TASKS OUT: makes the environment,
# enters OUT and sets root, books and tasks. OUT holds the data and the runs; the same command resumes. REHEARSE=10 tries all
# of it at a tenth of its size in OUT-rehearsal, where the folder of `study NAME` is runs/NAME$part.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
books=$(realpath "$1")
tasks=$(realpath "$2")
part=${REHEARSE:+-rehearsal}
bash "$root/tools/setup.sh"
mkdir -p "$3$part/data"
cd "$3$part" || exit
gpt1() { echo; echo "\$ gpt1-ds $*"; "$root/.venv/bin/gpt1-ds" "$@"; }
link() { for name in "$@"; do ln -sfn "$tasks/$name" "data/$name"; done; }
study() { gpt1 finetune study "finetune/study/$1" ${REHEARSE:+--rehearse "$REHEARSE"}; }
shelf() { # shelf/ has all novels but every twentieth, which lie in data/held_out for the probe next_sentence
  mkdir -p shelf data/held_out
  local file place number=0
  for file in "$books"/*.txt; do
    [ $((number++ % 20)) -eq 10 ] && place=data/held_out || place=shelf
    ln -sfn "$file" "$place/"
  done
}
