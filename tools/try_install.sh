#!/usr/bin/env bash
# A stranger's path: the wheel with all its extras in an empty environment, far from the checkout; then a Parquet file,
# a tiny model, its report, its export, a task of lm-evaluation-harness. About five minutes on two cores, and 3 GB of disk while it runs (a CPU build of torch).
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
cp -r "$root"/{gpt1_ds,configs,launch,pyproject.toml,setup.py,README.md,LICENSE} source
say pip wheel --quiet --no-deps --wheel-dir dist ./source
wheel=$(echo dist/*.whl)
# torch first and by its build: a plain `torch` pulls gigabytes of CUDA libraries
if [ -n "${TORCH_INDEX_URL:-}" ]; then
  say pip install --quiet --index-url "$TORCH_INDEX_URL" "torch==$version"
else
  say pip install --quiet "torch==$version+cpu" ||
    say pip install --quiet --index-url https://download.pytorch.org/whl/cpu "torch==$version"
fi
say pip install --quiet "${wheel}[all]"
say pip check
python -c "import gpt1_ds, torch; print('gpt1-ds', gpt1_ds.__version__, 'torch', torch.__version__, gpt1_ds.__file__)"

mkdir work && cd work
say gpt1-ds doctor
say python -c "import pandas, pydoc_data.topics as t; pandas.DataFrame({'body': [*t.topics.values()]}).to_parquet('docs.parquet')"
say gpt1-ds tokenizer train --input docs.parquet --text-key body --out tokenizer --vocab-size 1024
say gpt1-ds data build --input docs.parquet --text-key body --tokenizer tokenizer --out data --validation 0.05
say gpt1-ds pretrain run.name=tiny data.path=data train.steps=20 train.eval_batches=2 --nproc 2
say gpt1-ds evaluate --checkpoint runs/tiny
say gpt1-ds sample --checkpoint runs/tiny --prompt "Return the" --tokens 10 --temperature 0
say gpt1-ds report runs/tiny
say gpt1-ds checkpoint export runs/tiny --to hf --out exported
cat > last_words.yaml <<'TASK'
task: last_words
dataset_path: json
dataset_kwargs: {data_files: {test: last_words.jsonl}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{text.rsplit(' ', 1)[0]}}"
doc_to_target: "{{' ' + text.rsplit(' ', 1)[1]}}"
metric_list: [{metric: perplexity}, {metric: acc}]
TASK
printf '{"text": "%s"}\n' "The statement returns a value" "A class is an object" >last_words.jsonl
say gpt1-ds evaluate --checkpoint runs/tiny --lm-eval last_words.yaml
say python -c "import transformers; print(type(transformers.AutoModel.from_pretrained('exported')).__name__)"
echo "a stranger gets from the wheel to an exported model: torch $version"
