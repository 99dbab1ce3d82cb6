"""A fine-tuning study of models that answer in text: rows of several families, judged before any trial runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import ModelConfig
from gpt1_ds.sweep.finetuning_study import load_study
from gpt1_ds.sweep.finetuning_trials import FinetuningSweep, make_sweep
from gpt1_ds.training.configuration import finetune_config
from tests.helpers.foreign import make_checkpoint
from tools.small_tasks import make_task

T5 = ModelConfig(kind="encoder_decoder", norm="pre", layers=1, width=32, heads=2, context=48)
MODELS = {"T5": T5, "prefix": replace(T5, kind="gpt", mask="prefix"), "GPT": replace(T5, kind="gpt")}
STUDY = """
name: text
overrides: {{task: {{form: text}}, run.dir: {folder}/runs, train.micro_batch: 8}}
tasks: [{{preset: finetune/table, name: pairs, task: {{path: {folder}, columns: {{text: a, text2: b, label: x}}}}}}]
variants: {{{variants}}}
seeds: [1, 2]
"""


def sweep_of(folder: Path, tokenizer: Path, models: dict[str, ModelConfig]) -> FinetuningSweep:
    make_task(folder, "pair", 32, 4)
    for name, model in models.items():
        make_checkpoint(folder / name, tokenizer, model)
    variants = ", ".join(f"{name}: {{checkpoint.init_from: {folder / name}}}" for name in models)
    (folder / "text.yaml").write_text(STUDY.format(folder=folder, variants=variants))
    return make_sweep(load_study(str(folder / "text.yaml")), finetune_config)


def test_rows_of_several_families(span_data: Path, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, span_data.parent / "tokenizer", MODELS)
    sweep.check()
    assert [(trial.variant, trial.seed) for trial in sweep.trials] == [(name, s) for s in (1, 2) for name in MODELS]
    assert {(trial.section.form, trial.section.lm_coefficient) for trial in sweep.trials} == {("text", 0.0)}
    assert sweep.describe()["tasks"][0]["metric"] == "accuracy"


def test_a_row_that_cannot_write(sentence_data: Path, tmp_path: Path) -> None:
    masked = ModelConfig(layers=1, width=32, heads=2, context=48, mask="bidirectional", head="masked")
    with pytest.raises(ConfigError) as caught:
        sweep_of(tmp_path, sentence_data.parent / "tokenizer", {"BERT": masked})
    (line,) = caught.value.problems
    assert line == "text: pairs, BERT: task.form=text: model.mask=bidirectional writes no text; use task.form=head"
