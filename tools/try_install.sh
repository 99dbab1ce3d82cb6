#!/usr/bin/env bash
# A stranger's path: the wheel with all its extras in an empty environment, far from the checkout; then the whole way of
# the guide your-text, from a Parquet file to a task of lm-evaluation-harness. About five minutes on two cores, and 3 GB of
# disk while it runs (a CPU build of torch).
#   bash tools/try_install.sh             with the torch of tools/constraints.txt, and the newest of all else
#   bash tools/try_install.sh 2.11.0      with this torch
# TORCH_INDEX_URL names where torch comes from, PYTHON another Python, TMPDIR where the environment lies.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
version=${1:-$(sed -n 's/^torch==//p' "$root/tools/constraints.txt")}
here=$(mktemp -d)
trap 'rm -rf -- "$here"' EXIT
cd "$here"
"${PYTHON:-python3}" -m venv env
export PATH=$here/env/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH
say() { printf '\n$ %s\n' "$*" >&2; "$@"; }

mkdir source # building writes beside the sources
cp -r "$root"/{gpt1_ds,configs,launch,pyproject.toml,README.md,LICENSE} source
say pip wheel --quiet --no-deps --wheel-dir dist ./source
wheel=$(echo dist/*.whl)
# torch first and by its build: a plain `torch` pulls gigabytes of CUDA libraries
if [ -n "${TORCH_INDEX_URL:-}" ]; then
  say pip install --quiet --index-url "$TORCH_INDEX_URL" "torch==$version"
else
  say pip install --quiet "torch==$version+cpu" ||
    say pip install --quiet --index-url https://download.pytorch.org/whl/cpu "torch==$version" ||
    say pip install --quiet "torch==$version" # where only PyPI answers: with its CUDA libraries
fi
say pip install --quiet "${wheel}[all]"
say pip check
python -c "import gpt1_ds, torch; print('gpt1-ds', gpt1_ds.__version__, 'torch', torch.__version__, gpt1_ds.__file__)"

mkdir work && cd work
say gpt1-ds doctor
# shellcheck disable=SC2016 # the marks of a block of code are no command
lines=$(gpt1-ds guide your-text | awk '/^## /{on = /The whole way/} /^```/{code = on && /bash/; next} code') # the guide's own
bash -euxo pipefail -c "$lines"
echo "a stranger gets from the wheel to an exported model: torch $version"
