#!/usr/bin/env bash
# Makes .venv in the project root with everything that needs no GPU; on a machine with an NVIDIA driver, torch is the CUDA
# build. Doing it again takes no time. TORCH_INDEX_URL names another place to take torch from.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=..." >&2; exit 2; }

stamp=.venv/.gpt1-ds-$(cat pyproject.toml tools/constraints.txt tools/setup.sh | sha256sum | cut -c1-16)
[ -e "$stamp" ] && exit 0

echo "setting up .venv (once)" >&2
"$python" -m venv .venv
pip() { .venv/bin/python -m pip --quiet --disable-pip-version-check --no-input "$@" 2> >(grep -v '^WARNING: Location' >&2); }

# torch first, by its pin: deepspeed's own build and a plain `torch` would both pull gigabytes of CUDA libraries
torch=$(grep '^torch==' tools/constraints.txt)
if [ -n "${TORCH_INDEX_URL:-}" ]; then
  pip install --index-url "$TORCH_INDEX_URL" "$torch"
elif command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
  pip install "$torch"
else
  pip install "$torch+cpu" || pip install --index-url https://download.pytorch.org/whl/cpu "$torch" || pip install "$torch"
fi 2>/dev/null || { echo "torch could not be installed; set TORCH_INDEX_URL to an index that has $torch" >&2; exit 1; }
pip install setuptools wheel
pip install --no-build-isolation --constraint tools/constraints.txt --editable '.[all,dev]'
rm -f .venv/.gpt1-ds-*
touch "$stamp"
