#!/usr/bin/env bash
# A GPT-1 of full size trained and tested in minutes: bash tools/gpu/science.sh TOKENS_PER_SECOND SECONDS_OF_TRAINING
# For the same machine as contact.sh, which measures the tokens per second, while it is warm. Pre-training, probes, and
# fine-tuning with and without it, on what tools/gpu/pack.py packed. Text alone returns in $OUT (default: ./gpu-science),
# below 2 MB. `--device cpu --tiny` rehearses it.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
command -v "$python" >/dev/null || python=python3
export OUT=${OUT:-gpu-science} PYTHONUNBUFFERED=1
mkdir -p "$OUT"
code=0
"$python" "$root/tools/gpu/science.py" "$@" 2>&1 | tee "$OUT/console.txt" || code=$?
truncate -s '<800K' "$OUT/console.txt"
exit "$code"
