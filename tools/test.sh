#!/usr/bin/env bash
# All checks and tests on a fresh machine: formatting, types, then tests with real processes. Words go to pytest:
#   bash tools/test.sh                  what takes seconds; with CI=true all: SLURM, faults, fake GPUs, tables, too
#   bash tools/test.sh tests/unit -k dropout
set -euo pipefail
cd "$(dirname "$0")/.."
bash tools/setup.sh
export OMP_NUM_THREADS=1
unset PYTHONDONTWRITEBYTECODE # every process of every test would compile the package again
[ $# -eq 0 ] || exec .venv/bin/python -m pytest "$@"

.venv/bin/ruff check .
.venv/bin/ruff format --check --quiet .
.venv/bin/mypy
cores=$(OMP_NUM_THREADS="" nproc) # one worker more than cores: some tests wait while others compute
files=(--dist loadfile --no-loadscope-reorder) # tests of a file share what its fixtures made
set -- -n $((cores < 8 ? cores + 1 : 8)) "${files[@]}" --durations=30 --durations-min=10 tests --ignore=tests/tables
if [ -n "${CI:-}" ]; then
  trap wait EXIT
  nice bash tools/fakecuda.sh -- true 2>/dev/null & # downloads while tests run; below it is tried again, and says why not
else
  set -- "$@" -m "not slow" --ignore=tests/slurm --ignore=tests/faults
fi
.venv/bin/python -m pytest "$@"
[ -z "${CI:-}" ] || .venv/bin/python -m pytest tests/tables # minutes on all cores, so not beside jobs with limits
wait
if [ -n "${CI:-}" ] || bash tools/fakecuda.sh --made; then
  # with CI=true a machine that cannot make the environment fails; it says why. Kernels take minutes for each GPU
  bash tools/fakecuda.sh tests/fakecuda -n $((cores < 8 ? cores : 8)) "${files[@]}" -k "not sm_80 and not sm_100"
else
  echo "tests/fakecuda was not run: bash tools/fakecuda.sh makes its environment (5 GB)" >&2
fi
