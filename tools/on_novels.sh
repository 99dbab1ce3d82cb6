# shellcheck shell=bash disable=SC2034 # what is set here is used there
# Sourced by the experiments on a shelf of novels, with their arguments FOLDER_OF_NOVELS TASKS OUT: makes the environment,
# enters OUT and sets root, books and tasks. OUT holds the data and the runs; the same command resumes.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
books=$(realpath "$1")
tasks=$(realpath "$2")
bash "$root/tools/setup.sh"
mkdir -p "$3/data"
cd "$3" || exit
gpt1() { echo; echo "\$ gpt1-ds $*"; "$root/.venv/bin/gpt1-ds" "$@"; }
link() { for name in "$@"; do ln -sfn "$tasks/$name" "data/$name"; done; }
