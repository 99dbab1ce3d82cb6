"""Hold an export against EleutherAI's lm-evaluation-harness: its `hf` model and we give the same log-probabilities.

    python tools/lm_eval_check.py CKPT [--items FILE.jsonl] [--number 40]

Needs `pip install lm_eval accelerate` and no network. Items are {"context", "continuation"}, one a line; without a file
they are sentences of the documentation inside Python, cut in two. The checkpoint is exported to a temporary folder;
the harness runs a task of its own form (YAML and jsonl) on it; prints the largest difference and leaves with 1 when it
is above 1e-4 nats in a continuation's sum, or when the harness and we disagree on what is greedy.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from gpt1_ds.launcher import libraries

TOLERANCE = 1e-4  # nats, of the sum over a continuation
TASK = """task: gpt1_ds_items
dataset_path: json
dataset_kwargs:
  data_files:
    test: {items}
output_type: loglikelihood
test_split: test
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{continuation}}}}"
target_delimiter: ""
metric_list:
  - metric: perplexity
  - metric: acc
"""


def sentences(number: int) -> Iterator[dict[str, str]]:
    """Sentences of Python's documentation, cut before a word in their middle."""
    from gpt1_ds.data.python_docs import documents

    found = 0
    for document in documents():
        for sentence in " ".join(document.split()).split(". "):
            words = sentence.split(" ")
            if 8 <= len(words) <= 24:
                half = len(words) // 2
                yield {"context": " ".join(words[:half]), "continuation": " " + " ".join(words[half:])}
                found += 1
                break
        if found == number:
            return


def ours(checkpoint: Path, items: list[dict[str, str]]) -> list[tuple[float, bool]]:
    """(log-probability of the continuation, whether greedy decoding gives it) by our model and tokenizer."""
    import torch

    from gpt1_ds.evaluation.load import load_checkpoint

    loaded, results = load_checkpoint(checkpoint, "cpu"), []
    for item in items:
        context = len(loaded.tokenizer.encode(item["context"]))
        ids = torch.from_numpy(loaded.tokenizer.encode(item["context"] + item["continuation"]).astype("int64"))
        with torch.no_grad():
            logits = loaded.model.logits(ids[:-1].unsqueeze(1))[:, 0]
        chosen = logits.log_softmax(-1)[context - 1 :]
        targets = ids[context:]
        greedy = bool((chosen.argmax(-1) == targets).all())
        results.append((float(chosen.gather(1, targets.unsqueeze(1)).sum()), greedy))
    return results


def theirs(exported: Path, items: list[dict[str, str]], scratch: Path) -> list[tuple[float, bool]]:
    """The same from lm-eval, by its document number."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    (scratch / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (scratch / "tasks").mkdir()
    (scratch / "tasks" / "items.yaml").write_text(TASK.format(items=scratch / "items.jsonl"))
    output: Any = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(exported), "dtype": "float32"},
        tasks=["gpt1_ds_items"],
        task_manager=TaskManager(include_path=str(scratch / "tasks"), include_defaults=False),
        device="cpu",
        batch_size=1,
        log_samples=True,
        bootstrap_iters=0,
    )
    samples = sorted(output["samples"]["gpt1_ds_items"], key=lambda sample: sample["doc_id"])
    return [(float(sample["resps"][0][0][0]), bool(sample["resps"][0][0][1])) for sample in samples]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", metavar="CKPT", type=Path)
    parser.add_argument("--items", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--number", type=int, default=40, metavar="N", help="sentences, without --items")
    options = parser.parse_args()
    libraries.load()
    from gpt1_ds.interop import huggingface

    lines = options.items.read_text().splitlines() if options.items else []
    items = [json.loads(line) for line in lines] or list(sentences(options.number))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_DATASETS_CACHE"] = f"{folder}/cache"
        huggingface.export(options.checkpoint, Path(folder) / "exported")
        found = theirs(Path(folder) / "exported", items, Path(folder))
    wanted = ours(options.checkpoint, items)
    largest = max(abs(one - other) for (one, _), (other, _) in zip(found, wanted, strict=True))
    agree = sum(one == other for (_, one), (_, other) in zip(found, wanted, strict=True))
    mean = sum(value for value, _ in wanted) / len(wanted)
    print(f"{len(items)} items, mean log-probability {mean:.4f}: largest difference {largest:.2e} nats; ", end="")
    print(f"greedy alike in {agree} of {len(items)}")
    return int(largest > TOLERANCE or agree < len(items))


if __name__ == "__main__":
    sys.exit(main())
