#!/usr/bin/env bash
# A twin of a GPU machine: Python 3.12, a CUDA build of torch, the packages of tools/twin.txt; on CPUs. What passes here
# fails there because of the device alone. .venv-twin-2.11.0 is made once (7 GB); another torch is a layer over it (5 GB).
#   bash tools/twin.sh                          torch 2.11.0, which the machine has, tests of SUITES, then tests/fakecuda
#   bash tools/twin.sh 2.15.0 ARGUMENTS...          another torch; ARGUMENTS go to pytest in their place
#   bash tools/twin.sh 2.11.0 -- COMMAND...     COMMAND with the twin's python, as python3 and as $PYTHON
# A first contact is rehearsed by
#   bash tools/twin.sh 2.11.0 -- bash tools/gpu/contact.sh --device cpu --tiny
# The wheels that tools/gpu/pack.py has put into .gpu come before the twin's own packages there, as on the machine.
# PYTHON names a Python 3.12 that is not on the PATH as python3.12. Exit code 69: no twin can be made here; it says why.
set -euo pipefail
cd "$(dirname "$0")/.."

SUITES=(
  tests/unit/model tests/unit/engine tests/unit/launcher tests/unit/plan tests/golden
  tests/parallel/test_layouts.py tests/parallel/test_family_layouts.py tests/parallel/test_gradients.py
)

theirs=2.11.0 # the machine's
torch=${1:-$theirs}
[ $# -eq 0 ] || shift
[[ $torch =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "$torch: write a version of torch, as $theirs" >&2; exit 2; }
export FAKECUDA_VENV=.venv-twin-$torch FAKECUDA_TORCH=$torch
if [ "$torch" = $theirs ]; then
  FAKECUDA_PYTHON=${PYTHON:-python3.12} FAKECUDA_PINS=$FAKECUDA_VENV.txt
  [ "$("$FAKECUDA_PYTHON" -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null)" = "3 12" ] ||
    { echo "$FAKECUDA_PYTHON is no Python 3.12; set PYTHON=..." >&2; exit 69; }
  # both lists in one: the twin's own versions take the place of CI's
  grep -v -f <(sed 's/==.*/==/; s/^/^/' tools/twin.txt; echo ^torch==) tools/constraints.txt |
    cat - tools/twin.txt <(echo "torch==$torch") >"$FAKECUDA_PINS"
  export FAKECUDA_PYTHON FAKECUDA_PINS
else
  bash tools/twin.sh $theirs -- true
  export FAKECUDA_REST=.venv-twin-$theirs
fi
[ $# = 0 ] || exec bash tools/fakecuda.sh "$@"
code=0
bash tools/fakecuda.sh -n 2 --dist loadfile --no-loadscope-reorder "${SUITES[@]}" || code=$?
# by itself: fake ranks are forks of the tests' process, and would have the process group that another test made there
bash tools/fakecuda.sh || code=$?
exit $code
