#!/usr/bin/env bash
# Makes .venv in the project root. Doing it again takes no time.
#   bash tools/setup.sh           torch for the GPUs of this machine, else for its CPU
#   bash tools/setup.sh --gpu     torch for GPUs, also on a login node that has none; --gpu=cu126 names the build
#   bash tools/setup.sh --cpu     torch for CPUs
# TORCH_INDEX_URL names another place to take torch from. --print says which torch it would be, and does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=auto print=
for word in "$@"; do
  case $word in
    --gpu) kind=gpu ;;
    --gpu=cu[0-9]*) kind=${word#--gpu=} ;;
    --cpu) kind=cpu ;;
    --print) print=yes ;;
    *) echo "$word: write --gpu, --gpu=cu126, --cpu or --print" >&2; exit 2 ;;
  esac
done

driver() { # the major version of the NVIDIA driver that answers; nothing where none does
  command -v nvidia-smi >/dev/null || return 0
  { nvidia-smi --query-gpu=driver_version --format=csv,noheader || true; } 2>/dev/null | sed -n '1s/^\([0-9][0-9]*\)\..*/\1/p'
}

build() { # the newest build of torch that the driver runs; without a driver, one that most run
  local found
  found=$(driver)
  if [ "$kind" = auto ]; then
    [ -n "$found" ] && kind=gpu || kind=cpu
  fi
  if [ "$kind" != gpu ]; then
    echo "$kind"
  elif [ "${found:-570}" -ge 580 ]; then
    echo cu130
  elif [ "${found:-570}" -ge 570 ]; then
    echo cu128
  elif [ "$found" -ge 525 ]; then
    echo cu126
  else
    echo "the NVIDIA driver is $found; torch needs 525 or newer: update it, or write --cpu" >&2
    return 2
  fi
}
build=$(build)
[ -z "$print" ] || { echo "$build"; exit; }

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { # as pyproject.toml says
  found=$("$python" -c 'import sys; print(sys.version.split()[0])' 2>/dev/null) || found=none
  echo "$python is $found; Python 3.11, 3.12 or 3.13 is needed (megatron-core has no wheel for others): set PYTHON=..." >&2
  exit 2
}

stamp=.venv/.gpt1-ds-$(cat pyproject.toml tools/constraints.txt tools/setup.sh | sha256sum | cut -c1-16)
if [ "$kind" = auto ]; then # an environment that is there keeps its torch: nodes of a cluster share it
  for made in "$stamp"-*; do
    [ ! -e "$made" ] || exit 0
  done
fi
[ ! -e "$stamp-$build" ] || exit 0

torch=$(grep '^torch==' tools/constraints.txt)
case $build in
  cpu) download="200 MB" disk="3 GB" ;;
  *) download="3 GB" disk="8 GB" ;;
esac
step() { # what is done now, how much it is, and how long what is before it took
  printf '%3d s  %s\n' "$SECONDS" "$*" >&2
}
step "setting up .venv, once: $disk on disk, some minutes"
"$python" -m venv .venv
grow() { # while a step takes long, lines say that it still runs; what sleeps holds nothing open that others wait for
  while sleep "${GPT1_DS_SETUP_EVERY:-20}" >/dev/null 2>&1; do
    step "  .venv holds $(du -sm .venv | cut -f1) MB of $disk"
  done
}
grow &
growing=$!
trap 'kill "$growing" 2>/dev/null' EXIT
pip() { # a pipe, not 2> >(...): what pip says has been written when the function returns
  { .venv/bin/python -m pip --quiet --disable-pip-version-check --no-input "$@" 2>&1 >&3 |
    { grep -v '^WARNING: Location' >&2 || true; }; } 3>&1
}
pip_install() { pip install --no-compile "$@"; } # pip compiles on one core; below, all do

# another build of the same version would satisfy the pin
if ! ls .venv/.gpt1-ds-*-"$build" >/dev/null 2>&1; then
  rm -f .venv/.gpt1-ds-* # what is cut short from here on is not whole
  pip uninstall --yes torch >/dev/null 2>&1
fi
# torch first, by its pin: deepspeed's own build and a plain `torch` would both pull gigabytes of CUDA libraries
step "1/3 $torch, build $build: about $download to download"
install_torch() { pip_install "$@" 2>/dev/null; }
if [ -n "${TORCH_INDEX_URL:-}" ]; then
  install_torch --index-url "$TORCH_INDEX_URL" "$torch"
elif [ "$build" != cpu ]; then # the index first: a local +cpu wheel would also answer to the pin
  install_torch --index-url "https://download.pytorch.org/whl/$build" "$torch"
else
  install_torch "$torch+cpu" || install_torch --index-url https://download.pytorch.org/whl/cpu "$torch" || {
    step "  no index that answers has the CPU build; that of PyPI brings CUDA: about 3 GB to download, 8 GB on disk"
    install_torch "$torch"
  }
fi || { echo "torch could not be installed; set TORCH_INDEX_URL to an index that has $torch" >&2; exit 1; }
step "2/3 the other libraries: about 400 MB to download"
pip_install "setuptools>=77" wheel
pip_install --no-build-isolation --constraint tools/constraints.txt --editable '.[all,dev]'
step "3/3 compiling their Python files, on all cores"
.venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true # not 0 where a package holds a file of another Python
rm -f .venv/.gpt1-ds-*
touch "$stamp-$build"
step "done: .venv/bin/gpt1-ds doctor says what works here"
