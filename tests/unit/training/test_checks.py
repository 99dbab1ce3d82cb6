"""What a run refuses before its first step: the dry run and the run say the same line, and no rank is started."""

from __future__ import annotations

import os
import pydoc_data.topics
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpt1_ds.checkpoint import manifest
from gpt1_ds.cli import main
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import ModelConfig, load, to_yaml
from gpt1_ds.data.tokenizers.train import train_tokenizer
from gpt1_ds.launcher import launch
from gpt1_ds.training import checks, claim, configuration
from gpt1_ds.training.checks import CHECKS, Start
from gpt1_ds.training.configuration import pretrain_config
from tests.helpers import finetuning
from tests.helpers.foreign import make_checkpoint
from tools import small_tasks
from tools.runs import TINY

MODEL = ModelConfig(layers=2, width=32, heads=2, context=32)
SHORT = [*TINY, "train.steps=4"]
SEVERAL = "has no sentence borders"


@pytest.fixture
def world(tiny_data: Path, in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """An empty folder with a checkpoint in it, and no ranks."""

    def start(*_: Any) -> None:
        raise AssertionError("ranks were started")

    monkeypatch.setattr(launch, "start", start)
    make_checkpoint(in_folder / "source", tiny_data.parent / "tokenizer", MODEL)
    return {"data": tiny_data, "source": in_folder / "source", "task": tiny_data.parent / "tokenizer"}


def saved_run(world: dict[str, Path], *arguments: str, step: int = 4, data: str = "") -> Path:
    """A run folder with one checkpoint, as if a run with these arguments had saved it at `step`."""
    config = configuration.resolved(pretrain_config([], [*SHORT, f"data.path={world['data']}", *arguments]))
    run_dir = claim.run_folder(config)
    run_dir.create()
    run_dir.config.write_text(to_yaml(config))
    folder = run_dir.checkpoint(step)
    make_checkpoint(Path("made"), world["data"].parent / "tokenizer", config.model)
    Path("made").rename(folder)
    facts = _facts(folder)
    facts["hashes"]["data"] = data or Start(config, 1).data_hash
    manifest.write(folder, {**facts, "step": step})
    return run_dir.path


def _facts(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint that was made elsewhere."""
    body = manifest.read_json(folder / manifest.NAME, "")
    return {key: value for key, value in body.items() if key not in ("format", "checksum")}


def _cut(world: dict[str, Path]) -> list[str]:
    path = next((world["source"] / "state").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-4])
    return [f"checkpoint.init_from={world['source']}"]


def _another_tokenizer(_: dict[str, Path], pieces: int = 500) -> list[str]:
    Path("text.txt").write_text("\n".join(str(text)[::-1] for text in pydoc_data.topics.topics.values()))
    train_tokenizer(["text.txt"], Path("other-tokenizer"), pieces)
    make_checkpoint(Path("other"), Path("other-tokenizer"), MODEL)
    return ["checkpoint.init_from=other"]


def _of_another_run(world: dict[str, Path]) -> list[str]:
    saved_run(world)
    return ["model.layers=3"]


def _with_a_shorter_context(world: dict[str, Path]) -> list[str]:
    saved_run(world)
    return ["model.context=16", "checkpoint.positions=draw"]


def _of_other_data(world: dict[str, Path]) -> list[str]:
    saved_run(world, data="0" * 64)
    return []


def _to_the_end(world: dict[str, Path]) -> list[str]:
    return [f"checkpoint.resume={saved_run(world, 'run.name=before')}", "run.name=after"]


def _open_folder(_: dict[str, Path]) -> list[str]:
    Path("runs/run").mkdir(parents=True)
    Path("runs/run").chmod(0o777)
    return []


def _file_in_the_way(_: dict[str, Path]) -> list[str]:
    Path("runs").write_text("")
    return []


def _link_in_the_way(_: dict[str, Path]) -> list[str]:
    Path("runs").mkdir()
    Path("runs/run").symlink_to("nowhere")
    return []


def _pipe_in_the_way(_: dict[str, Path]) -> list[str]:
    Path("runs/run").mkdir(parents=True)
    os.mkfifo("runs/run/metrics.jsonl")
    return []


def _folder_in_the_way(_: dict[str, Path]) -> list[str]:
    Path("runs/run/config.yaml").mkdir(parents=True)
    return []


Prepare = Callable[[dict[str, Path]], list[str]]
VIOLATIONS: dict[Any, list[tuple[Prepare, str]]] = {
    checks.check_settings: [
        (lambda _: ["parallel.tensor=2"], "parallel.tensor=2 x parallel.pipeline=1 = 2 ranks do not divide"),
        (lambda _: ["train.device=cpu", "model.attention=fused"], "model.attention=fused needs CUDA"),
    ],
    checks.check_place: [
        (_open_folder, "everybody may write to this run folder"),
        (_file_in_the_way, "a part of this path is a file"),
        (_link_in_the_way, "runs/run: is no folder; remove it"),
        (_pipe_in_the_way, "runs/run/metrics.jsonl: is no regular file; remove it"),
        (_folder_in_the_way, "runs/run/config.yaml: is no regular file; remove it"),
    ],
    checks.check_tokenizer: [
        (_another_tokenizer, "was trained with another tokenizer than that of data.path"),
        (lambda at: _another_tokenizer(at, 400), "was trained with another tokenizer than that of data.path"),
    ],
    checks.check_material: [
        (lambda _: ["data.path=nowhere"], "nowhere: not a dataset"),
        (lambda _: ["model.context=1M"], "too few for one window"),
        (lambda _: ["model.vocab_size=10"], "model.vocab_size=10 is smaller than the tokenizer's"),
        (lambda _: ["objective.kind=masked", "model.mask=bidirectional"], "objective.kind=masked needs a token <mask>"),
        (lambda _: ["data.text=pairs", "objective.next_sentence=true", "model.segments=2", "objective.kind=masked",
                    "model.mask=bidirectional"], SEVERAL),
    ],
    checks.check_length: [
        (lambda _: ["train.steps=100k", "data.epochs_limit=1"], "data.epochs_limit=1.0: 100000 steps pass"),
    ],
    checks.check_evaluations: [
        (lambda _: ["train.evaluations=[{name: blimp, path: nowhere}]"], "train.evaluations: nowhere: no such folder"),
        (lambda _: ["train.evaluations=[{lm_eval: nope.yaml}]"], "lm_eval=nope.yaml: no such task file"),
        (lambda _: ["train.evaluations=[{linear: model/gpt1}]"], "linear=model/gpt1 names no task; give a preset"),
        (lambda _: ["train.evaluations=[{linear: finetune/sst2}]"], "train.evaluations: data/sst2: no such folder"),
    ],
    checks.check_folder: [
        (_of_another_run, "belongs to another configuration: model.layers was 2 and is now 3"),
        (_with_a_shorter_context, "belongs to another configuration: model.context was 32 and is now 16"),
    ],
    checks.check_first_state: [
        (lambda _: ["checkpoint.init_from=runs/nope"], "runs/nope: no such folder"),
        (lambda _: ["checkpoint.resume=runs/nope"], "runs/nope: no such folder"),
        (lambda at: [f"checkpoint.init_from={at['source']}", "model.layers=3", "model.width=64"],
         "has a model of another shape than model.layers=3, model.width=64 (there 2, 32); leave these keys out"),
        (_cut, "damaged:"),
        (_of_other_data, "was trained on other data than data.path now has"),
        (_to_the_end, "has 4 of 4 steps: nothing is left to train"),
        (lambda at: [f"checkpoint.init_from={at['source']}", "model.context=64"],
         "model.context=64 (there 32); leave this key out, or let positions grow with checkpoint.positions=draw"),
        (lambda at: [f"checkpoint.init_from={at['source']}", "model.context=16", "checkpoint.positions=repeat"],
         "has a model of another shape than model.context=16 (there 32); leave these keys out"),
    ],
}  # fmt: skip


def refusals(command: str, arguments: list[str], capfd: pytest.CaptureFixture[str]) -> list[list[str]]:
    """What the dry run and the run say as they refuse."""
    said = []
    for dry in (["--dry-run"], []):
        assert main([command, *arguments, *dry, "--nproc", "1"]) == 2
        said.append(capfd.readouterr().err.splitlines())
    return said


def test_every_check_is_violated_below() -> None:
    assert VIOLATIONS.keys() == set(CHECKS)


@pytest.mark.parametrize(
    ("check", "number"),
    [(check, number) for check, cases in VIOLATIONS.items() for number in range(len(cases))],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_dry_run_refuses_what_the_run_refuses(
    check: Any, number: int, world: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    prepare, says = VIOLATIONS[check][number]
    arguments = [*SHORT, f"data.path={world['data']}", *prepare(world)]
    if number == 2 and check is checks.check_first_state:  # the shape is the checkpoint's but for what is named
        arguments = arguments[len(TINY) :]
    dry, run = refusals("pretrain", arguments, capfd)
    assert dry == run
    if says == SEVERAL:  # all that a dataset and its tokenizer lack
        assert len(dry) > 1
    else:
        assert len(dry) == 1
    assert says in dry[0]


TASK_VIOLATIONS: list[tuple[list[str], str]] = [
    (["checkpoint.init_from=nowhere"], "nowhere: no such folder"),
    (["task.path=nowhere"], "nowhere: no such folder"),
    (["train.global_batch=64", "train.micro_batch=64"], "are fewer than one batch"),
    (["task.kind=generation", "task.columns={text: a, label: b}", "task.decoding.beams=5000"],
     "task.decoding.beams=5000 must be at most"),
    (["task.max_length=4096"], "task.max_length=4096 is more than the model's context"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "says"), TASK_VIOLATIONS)
def test_of_fine_tuning_too(
    arguments: list[str], says: str, world: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    task = small_tasks.make_task(Path("task"), "single", train=24, dev=6)
    dry, run = refusals(
        "finetune", [*finetuning.TRAINING, *task, f"checkpoint.init_from={world['source']}", *arguments], capfd
    )
    assert dry == run
    assert len(dry) == 1
    assert says in dry[0]


def test_what_scores_a_task_is_asked_for_before_it_is_trained(
    world: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The run trained an epoch, and ended at its scores, with nothing saved."""
    task = small_tasks.make_task(Path("task"), "single", train=24, dev=6)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    dry, run = refusals("finetune", [*finetuning.TRAINING, *task, f"checkpoint.init_from={world['source']}"], capfd)
    assert dry == run == ["gpt1-ds: table: its scores need scikit-learn; pip install 'gpt1-ds[finetune]'"]


def test_a_missing_checkpoint_hides_no_other_mistake(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["task.name=table", "task.kind=clasification", "task.lern=1", "checkpoint.init_from=nowhere"]
    assert main(["finetune", *arguments]) == 2
    missing, kind, key = capfd.readouterr().err.splitlines()
    assert "nowhere: no such folder" in missing
    assert "task.kind: Invalid value 'clasification'" in kind
    assert "task.lern: the section task has no key 'lern'" in key
    assert main(["pretrain", "train.stepz=1", "checkpoint.init_from=nowhere"]) == 2
    assert "train.stepz" in capfd.readouterr().err.splitlines()[1]


def test_a_dry_run_of_fine_tuning_knows_its_length(world: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    """24 examples in batches of 4, three times."""
    task = small_tasks.make_task(Path("task"), "single", train=24, dev=6)
    arguments = [*task, f"checkpoint.init_from={world['source']}", "train.global_batch=4", "train.epochs=3"]
    assert main(["finetune", *arguments, "train.micro_batch=4", "--dry-run"]) == 0
    assert "batch: 4 sequences = 128 tokens per step at most; 18 steps\n" in capfd.readouterr().out


def test_a_warm_up_that_is_cut_is_said_first(world: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [*SHORT, f"data.path={world['data']}", "schedule.warmup_steps=100"]
    assert main(["pretrain", *arguments, "--dry-run"]) == 0
    assert "schedule.warmup_steps=100 is more than the 4 steps of the run" in capfd.readouterr().out


def test_what_a_run_reads_of_each_source_is_said_first(
    world: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    """Equal weights read the two alike, whatever their sizes: one pass over all text is several over the smaller."""
    one = world["data"]
    arguments = [*TINY, f"data.path=[{{path: {one}, weight: 3}}, {one}]", "train.epochs=1"]
    assert main(["pretrain", *arguments, "--dry-run"]) == 0
    said = re.search(r"data\.path: the run passes ([\d.]+) times over .*, ([\d.]+) times .*", capfd.readouterr().out)
    assert said
    assert [float(said[1]), float(said[2])] == pytest.approx([1.5, 0.5], abs=0.02)
    assert said[0].endswith(f"; the held-out text is that of {one}")
    dry, run = refusals("pretrain", [*arguments, "data.epochs_limit=1"], capfd)
    assert dry == run
    assert f"times over {one}, for its weight" in dry[0]


def test_what_a_run_takes_the_dry_run_takes(world: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    """Weights of a checkpoint give the model its shape; a folder of the same run continues."""
    arguments = [f"data.path={world['data']}", f"checkpoint.init_from={world['source']}"]
    assert main(["pretrain", *arguments, "--dry-run"]) == 0
    assert "model: 2 layers x width 32, 2 heads, context 32" in capfd.readouterr().out
    saved_run(world)
    assert main(["pretrain", *SHORT, arguments[0], "train.steps=8", "--dry-run"]) == 0


def test_a_run_that_is_done_says_so_without_ranks(world: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    folder, arguments = saved_run(world), [*SHORT, f"data.path={world['data']}"]
    (folder / "DONE").write_text('{"step": 4}')
    assert main(["pretrain", *arguments, "--nproc", "1"]) == 0
    assert capfd.readouterr().err == "runs/run: done after step 4\n"
    for more in (["train.steps=5"], ["checkpoint.keep=7"]):  # what is left to do, and what is to be noted
        with pytest.raises(AssertionError, match="ranks were started"):
            main(["pretrain", *arguments, *more, "--nproc", "1"])


def test_a_job_of_a_run_that_is_done_leaves_its_outcome(
    world: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, arguments = saved_run(world), [*SHORT, f"data.path={world['data']}"]
    (folder / "DONE").write_text('{"step": 4}')
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert main(["pretrain", *arguments, "--nproc", "1"]) == 0
    assert re.search('"code": 0,\n *"reason": "done",\n *"step": 4', (folder / "slurm" / "outcome-7.json").read_text())


def test_a_configuration_is_resolved_as_its_run_saves_it(world: dict[str, Path]) -> None:
    config = load([], [*SHORT, f"data.path={world['data']}"])
    assert config.model.vocab_size is None
    assert configuration.resolved(config).model.vocab_size == 500


def test_what_is_measured_needs_its_library_and_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda _: None)
    config = load([], ["train.evaluations=[{lm_eval: blimp}]", "checkpoint.best=eval.loss", "data.path=d"])
    start: Any = SimpleNamespace(config=config, placed=config, data=SimpleNamespace(held_out=None))
    with pytest.raises(ConfigError) as caught:
        checks.check_evaluations(start)
    library, text = caught.value.problems
    assert "lm_eval=blimp: lm-evaluation-harness is not installed; pip install 'gpt1-ds[lm-eval]'" in library
    assert text == "checkpoint.best=eval.loss: d has no held-out text; build it with --validation above 0"
