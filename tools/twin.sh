#!/usr/bin/env bash
# A twin of a GPU machine: Python 3.12, a CUDA build of torch, the packages of tools/twin.txt; on CPUs. What passes here
# fails there because of the device alone. An environment for each torch, .venv-twin-TORCH, is made once (7 GB).
#   bash tools/twin.sh                          torch 2.11.0, and the tests of SUITES
#   bash tools/twin.sh 2.15.0 WORDS...          another torch; WORDS go to pytest in the place of SUITES
#   bash tools/twin.sh 2.11.0 -- COMMAND...     COMMAND with the twin's python and python3; so a contact is rehearsed:
#   bash tools/twin.sh 2.11.0 -- bash tools/gpu/contact.sh --device cpu --tiny
# PYTHON names a Python 3.12 that is not on the PATH as python3.12. Exit code 69: no twin can be made here; it says why.
set -euo pipefail
cd "$(dirname "$0")/.."

SUITES=(
  tests/unit/model tests/unit/engine tests/unit/launcher tests/unit/plan tests/golden
  tests/parallel/test_layouts.py tests/parallel/test_family_layouts.py tests/parallel/test_gradients.py
  tests/fakecuda
)

torch=${1:-2.11.0}
[ $# -eq 0 ] || shift
[[ $torch =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "$torch: write a version of torch, as 2.11.0" >&2; exit 2; }
python=${PYTHON:-python3.12}
[ "$("$python" -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null)" = "3 12" ] ||
  { echo "$python is no Python 3.12; set PYTHON=..." >&2; exit 69; }

pins=.venv-twin-$torch.txt # both lists in one: the twin's own versions take the place of CI's
grep -v -f <(sed 's/==.*/==/; s/^/^/' tools/twin.txt; echo ^torch==) tools/constraints.txt |
  cat - tools/twin.txt <(echo "torch==$torch") >"$pins"
export FAKECUDA_VENV=.venv-twin-$torch FAKECUDA_TORCH=$torch FAKECUDA_PYTHON=$python FAKECUDA_PINS=$pins
[ $# -gt 0 ] || set -- -n 2 "${SUITES[@]}"
exec bash tools/fakecuda.sh "$@"
