#!/usr/bin/env bash
# Tests on fake GPUs: whole steps on tensors without values, in an environment of its own that is made once (5 GB).
#   bash tools/fakecuda.sh                  make .venv-fakecuda if it is not there, then run tests/fakecuda
#   bash tools/fakecuda.sh --made           only say whether it is there
#   bash tools/fakecuda.sh -- COMMAND...    run COMMAND with the environment's python and python3
#   bash tools/fakecuda.sh ARGUMENTS...         ARGUMENTS go to pytest in the place of tests/fakecuda
# Exit code 69: it cannot be made here; it says why. Needs tools/setup.sh to have run. A failure in CI (tools/test.sh).
# tools/twin.sh makes others by FAKECUDA_VENV, _TORCH, and either _REST or _PYTHON and _PINS.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${FAKECUDA_VENV:-.venv-fakecuda}
rest=${FAKECUDA_REST:-.venv} # the environment that has all else
pins=${FAKECUDA_PINS:-}      # a file of versions by which all else is installed instead
python=${FAKECUDA_PYTHON:-$rest/bin/python}
space=8 # GB that must be free: the wheels and what they unpack to
failure="tests/fakecuda is not run"
[ -z "$pins" ] || space=12
[ "$venv" = .venv-fakecuda ] || failure="no twin is made"
cannot() { echo "$failure: $*" >&2; exit 69; }

# === is this very version and no local build of it: the +cpu wheel answers to == as well
cuda=torch===${FAKECUDA_TORCH:-$(sed -n 's/^torch==//p' tools/constraints.txt)}
stamp=$venv/.gpt1-ds-$(cat tools/constraints.txt ${pins:+"$pins"} tools/fakecuda.sh tools/fakecuda/shim.cpp | sha256sum | cut -c1-16)
if [ "${1:-}" = --made ]; then
  [ -e "$stamp" ]
  exit
fi
if [ ! -e "$stamp" ]; then
  [ -x .venv/bin/python ] || cannot "there is no .venv; run bash tools/setup.sh first"
  command -v g++ >/dev/null || cannot "there is no g++ to compile tools/fakecuda/shim.cpp"
  free=$(df --output=avail -B1G . | tail -n 1)
  [ "$free" -ge "$space" ] || cannot "$venv needs $space GB of disk, $free GB are free"
  echo "setting up $venv (once)" >&2
  "$python" -m venv --clear "$venv" || cannot "no virtual environment could be made"
  pip() { # a pipe, not 2> >(...): what pip says has been written when the function returns
    { "$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input "$@" 2>&1 >&3 |
      { grep -v '^WARNING: Location' >&2 || true; }; } 3>&1
  }
  pip install --no-compile ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$cuda" 2>"$venv/pip.log" ||
    pip install --no-compile "$cuda" --index-url https://download.pytorch.org/whl/cu130 2>/dev/null ||
    cannot "$cuda could not be installed ($(sed -n '/^ERROR: /{s///p;q;}' "$venv/pip.log"));" \
      "set TORCH_INDEX_URL to an index that has its CUDA build"
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  if [ -n "$pins" ]; then
    pip install --no-compile "setuptools>=77" wheel
    pip install --no-compile --no-build-isolation --constraint "$pins" --editable '.[all,dev]'
    # Triton 3.6 cannot interpret kernels with numpy 2.4 or newer: tests/helpers/interpreter.py does it with an older one
    pip install --no-compile --no-deps --target "$venv/interpreter" 'numpy<2.4'
  else # what is in the environment itself comes first
    "$rest/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$site/zz_rest.pth"
  fi
  torch=$site/torch
  g++ -std=c++20 -O1 -shared -fPIC -I"$torch/include" tools/fakecuda/shim.cpp \
    -L"$torch/lib" -ltorch_cpu -Wl,-rpath,"$torch/lib" -o "$PWD/$venv/fakecuda.so" ||
    cannot "tools/fakecuda/shim.cpp does not compile against $cuda"
  "$venv/bin/python" -m compileall -q -j 0 "$site" >/dev/null 2>&1 || true # as in setup.sh
  rm -f "$venv"/.gpt1-ds-*
  touch "$stamp"
fi
if [ "${1:-}" = -- ]; then
  export PATH=$PWD/$venv/bin:$PATH PYTHON=$PWD/$venv/bin/python # scripts of tools/ take PYTHON
  exec "${@:2}"
fi
cores=$(OMP_NUM_THREADS="" nproc)
[ $# -gt 0 ] || set -- -n $((cores < 8 ? cores : 8)) --dist loadfile --no-loadscope-reorder tests/fakecuda
export OMP_NUM_THREADS=1 PYTHONPATH=$PWD
exec "$venv/bin/python" -m pytest "$@"
