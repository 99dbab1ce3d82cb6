"""The paper's ablation: an LSTM in the place of the blocks trains, resumes and is fine-tuned like the transformer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpt1_ds import load
from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.count import parameters
from gpt1_ds.cli import main
from gpt1_ds.common.errors import CheckpointError, ConfigError
from gpt1_ds.config import load as load_config
from gpt1_ds.interop import hf_export
from gpt1_ds.model import names
from tests.helpers import finetuning
from tools import runs, small_tasks

LSTM = ["model.kind=lstm", "model.layers=1", "model.units=48", "model.width=32", "model.heads=1", "model.context=32"]


@pytest.fixture(scope="module")
def trained(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The arguments of a run of six steps on one rank that has ended."""
    arguments = [
        *LSTM,
        f"data.path={tiny_data}",
        f"run.dir={tmp_path_factory.mktemp('lstm')}",
        "schedule.kind=constant",
    ]
    assert runs.pretrain([*arguments, "train.steps=6"], 1) == 0
    return arguments


def test_the_plan_counts_what_is_built(trained: list[str]) -> None:
    model, tokenizer = load(runs.folder(trained).path)
    built = {names.info(p).name: names.info(p).shape for p in model.parameters()}
    settings = runs.configuration(trained).model
    assert built == architecture(settings, tokenizer.vocab_size).shapes
    assert sum(p.numel() for p in model.parameters()) == parameters(settings, 512), "500 rows and 12 of padding"


@pytest.mark.parametrize("arguments", [[], ["parallel.zero=3"], ["train.micro_batch=1"]], ids=["zero1", "zero3", "mb1"])
def test_two_ranks_equal_one(arguments: list[str], trained: list[str], tmp_path: Path) -> None:
    other = [*trained, f"run.dir={tmp_path}", *arguments]
    assert runs.pretrain([*other, "train.steps=6"], 2) == 0
    one, two = runs.losses(runs.folder(trained)), runs.losses(runs.folder(other))
    assert one.keys() == two.keys()
    assert max(abs(one[step] - two[step]) for step in one) < 1e-5
    assert one[6] < one[1]


def test_continues_bit_for_bit(trained: list[str], tmp_path: Path) -> None:
    other = [*trained, f"run.dir={tmp_path}"]
    for steps in (2, 6):
        assert runs.pretrain([*other, f"train.steps={steps}"], 1) == 0
    assert runs.losses(runs.folder(other)) == runs.losses(runs.folder(trained))
    assert runs.weights(runs.folder(other)) == runs.weights(runs.folder(trained))


def test_samples_are_what_the_whole_text_gives(trained: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The cached state of one token after another is that of the text at once."""
    run = runs.folder(trained).path
    arguments = ["--prompt", "The module", "--tokens", "8", "--temperature", "0"]
    assert main(["sample", "--checkpoint", str(run), *arguments]) == 0
    assert capsys.readouterr().out.startswith("The module")
    model, tokenizer = load(run)
    tokens = torch.from_numpy(tokenizer.encode("The module returns a list")).long().unsqueeze(1)
    caches = model.caches()
    whole = model.logits(tokens)
    parts = torch.cat([model.logits(one, caches=caches) for one in tokens.split(1)])
    real = tokenizer.vocab_size
    torch.testing.assert_close(parts[..., :real], whole[..., :real], atol=1e-5, rtol=1e-5)


def test_fine_tunes_alike_on_two_ranks_and_in_bf16(trained: list[str], tmp_path: Path) -> None:
    arguments = [
        *(*small_tasks.make_task(tmp_path / "task", "similarity"), "train.steps=6", f"run.dir={tmp_path}"),
        f"checkpoint.init_from={runs.folder(trained).path}",
    ]
    losses = {}
    for name, ranks, more in (("one", 1, []), ("dp2", 2, []), ("bf16", 1, ["train.precision=bf16"])):
        assert finetuning.finetune([*arguments, f"run.name={name}", *more], ranks) == 0
        losses[name] = runs.losses(finetuning.folder([*arguments, f"run.name={name}"]))
    assert max(abs(losses["one"][step] - losses["dp2"][step]) for step in range(1, 7)) < 1e-5
    assert 0 < max(abs(losses["one"][step] - losses["bf16"][step]) for step in range(1, 7)) < 2e-2


@pytest.mark.parametrize(
    "arguments", [["parallel.tensor=2", "model.heads=2"], ["parallel.pipeline=2"], ["model.layers=2"]]
)
def test_it_is_not_cut(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"model\.kind=lstm has one layer, on every rank as a whole") as caught:
        load_config([], [*LSTM, *arguments])
    assert len(caught.value.problems) == 1


def test_transformers_cannot_express_it(trained: list[str], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.kind=lstm: transformers has no such model") as caught:
        hf_export.export(runs.folder(trained).path, tmp_path / "out")
    assert len(caught.value.problems) == 1
    assert not (tmp_path / "out").exists()
