"""What a published README.md says besides how to load the model: its licence, data, training, curves and results.

Results are in the metadata (`model-index`), in the form that huggingface_hub writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config

CURVES = "curves.png"
LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")
_SECTIONS = ("model", "objective", "task", "train", "optimizer", "schedule")
_PRIVATE = ("path", "sts", "tokenizer")  # places on the machine that trained
_COUNTS = (  # metrics that are no result
    *("examples", "fitted", "paradigms", "threshold", "shots", "tokens", "perplexity_control"),
    *(f"{area}{name}" for area in ("", "auc_") for name in ("chance", "control", "control_low", "control_high")),
    *("low", "high", "auc_low", "auc_high"),
)

_TRAINING = """
## Training

{facts[step]} steps, {facts[tokens]} tokens, seed {facts[seed]}, {facts[precision]},
by gpt1-ds {facts[hashes][version]}.

| hash of | |
| --- | --- |
{hashes}
{curves}
```yaml
{config}```
"""
_RESULTS = """
## Results

| task | split | metric | value |
| --- | --- | --- | --- |
{rows}
"""


def check_licence(licence: str) -> None:
    """Raise ConfigError for what is no identifier of a licence."""
    if not LICENCE.fullmatch(licence):
        raise ConfigError(f"--license {licence!r:.60}: no identifier of a licence; write one like apache-2.0")


def complete(
    readme: str,
    name: str,
    licence: str | None,
    facts: dict[str, Any],
    config: Config,
    entries: Sequence[dict[str, Any]],
    curves: bool,
) -> str:
    """The README.md of an export with what a reader elsewhere wants to know. `name` is the model's, `facts` the
    checkpoint's manifest, `entries` of eval.json those of its step; `curves`: CURVES is beside it.
    """
    from huggingface_hub import ModelCard

    card = ModelCard(readme)
    card.data.license = licence
    card.data.model_name = name
    found = [*_results(entries, str(card.data.pipeline_tag or "text-generation"))]
    if found:
        card.data.eval_results = found
    card.text = card.text.rstrip() + "\n" + _training(facts, config, curves) + (_table(entries) if found else "")
    return str(card)


def _numbers(entry: dict[str, Any]) -> dict[str, float]:
    metrics = entry["metrics"].items()
    return {key: value for key, value in metrics if isinstance(value, int | float) and key not in _COUNTS}


def _results(entries: Sequence[dict[str, Any]], tag: str) -> Iterator[Any]:
    from huggingface_hub import EvalResult

    for entry in entries:
        for metric, value in _numbers(entry).items():
            yield EvalResult(
                task_type=tag,
                dataset_type=re.sub(r"[^\w.-]+", "-", entry["task"]),
                dataset_name=entry["task"],
                dataset_split=entry["split"],
                metric_type=metric,
                metric_value=value,
            )


def _table(entries: Sequence[dict[str, Any]]) -> str:
    rows = [
        f"| {entry['task']} | {entry['split']} | {metric} | {value:.6g} |"
        for entry in entries
        for metric, value in _numbers(entry).items()
    ]
    return _RESULTS.format(rows="\n".join(rows))


def _training(facts: dict[str, Any], config: Config, curves: bool) -> str:
    names = {name: value for name, value in facts["hashes"].items() if name != "version" and value}
    sections = {name: asdict(part) for name in _SECTIONS if (part := getattr(config, name, None)) is not None}
    kept = {name: {k: v for k, v in part.items() if not _is_private(k, v)} for name, part in sections.items()}
    return _TRAINING.format(
        facts=facts,
        hashes="\n".join(f"| {name} | `{value}` |" for name, value in names.items()),
        curves=f"\n![Losses of the run]({CURVES})\n" if curves else "",
        config=yaml.safe_dump(kept, sort_keys=False, default_flow_style=None, width=110),
    )


def _is_private(key: str, value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_is_private(key, one) for one in value)
    return value is None or key in _PRIVATE or isinstance(value, Path) or (isinstance(value, str) and "/" in value)
