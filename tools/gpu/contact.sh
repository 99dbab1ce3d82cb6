#!/usr/bin/env bash
# Everything that is asked of a GPU, most valuable first: bash tools/gpu/contact.sh [BUDGET_S] [PHASE...]
# Results are in $OUT (default: ./gpu-contact): results.jsonl, log.txt, gpu-check.json, trace.json.gz. `--list` names the
# phases; `--device cpu --tiny` rehearses all of them in a minute. `gpt1-ds guide gpus` says more.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
command -v "$python" >/dev/null || python=python3
exec "$python" "$root/tools/gpu/contact.py" "$@"
