import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gpt1_ds.checkpoint import manager
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.cli import main
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.config import load, to_yaml
from gpt1_ds.config.sections import OptimizerConfig
from gpt1_ds.training import resume
from gpt1_ds.training.checks import Start
from tools.runs import TINY, configuration, pretrain


def test_a_context_may_grow_where_that_is_asked_for() -> None:
    before = load([], ["train.steps=10", "model.context=32"])
    longer, shorter = (load([], ["train.steps=10", f"model.context={context}"]) for context in (64, 16))
    for now, grows in ((longer, False), (shorter, True)):
        with pytest.raises(ConfigError, match=r"model\.context was 32 and is now"):
            resume.check("runs/x", resume.changes(before, now), grows)
    resume.check("runs/x", resume.changes(before, longer), grows=True)
    with pytest.raises(ConfigError, match=r"checkpoint\.positions=draw lets a run continue with longer rows"):
        load([], ["train.tokens=5M", "checkpoint.positions=draw"])
    assert load([], ["train.tokens=5M", "checkpoint.positions=draw", "checkpoint.init_from=x"])
    factored = ["train.steps=5", "checkpoint.positions=draw", "optimizer.name=adafactor"]
    with pytest.raises(ConfigError, match=r"the means of optimizer\.name=adafactor are of whole matrices"):
        load([], factored)
    assert load([], [*factored, "checkpoint.init_from=x"])


def test_what_may_change_and_what_not() -> None:
    before = load([], ["train.steps=10"])
    allowed = load(
        [],
        [
            "train.tokens=5M",
            "parallel.tensor=2",
            "train.micro_batch=4",
            "checkpoint.every=7",
            "run.dir=x",
            "train.profile=2:4",
        ],
    )
    changed = resume.changes(before, allowed)
    assert set(changed) == {
        "train.steps",
        "train.tokens",
        "parallel.tensor",
        "train.micro_batch",
        "checkpoint.every",
        "run.dir",
        "train.profile",
    }
    resume.check("runs/x", changed)
    other = load(
        [], ["train.steps=10", "model.layers=3", "optimizer.lr=1", "data.path=y", "run.seed=9", "data.offsets=epoch"]
    )
    with pytest.raises(ConfigError) as caught:
        resume.check("runs/x", resume.changes(before, other))
    assert len(caught.value.problems) == 5
    assert "model.layers was 2 and is now 3" in "\n".join(caught.value.problems)
    arguments = ["model.layers=3", "model.width=32", "model.heads=2", "optimizer.lr=1", "data.path=y", "run.seed=9"]
    with pytest.raises(ConfigError) as caught:
        resume.check("runs/x", resume.changes(before, load([], ["train.steps=10", *arguments])))
    (line,) = caught.value.problems
    assert line.startswith("runs/x belongs to another configuration: 6 keys have other values (data.path, ")
    assert line.endswith("; choose another run.name, or begin anew with checkpoint.resume=never")


def test_a_moved_dataset_is_continued_with_in_a_new_folder() -> None:
    """One was told to set it back or to begin anew."""
    before, now = (load([], [f"data.path={path}"]) for path in ("x", "y"))
    with pytest.raises(ConfigError) as caught:
        resume.check("runs/x", resume.changes(before, now))
    assert (
        "; to continue with it on the same data, which are elsewhere now, in a new folder: run.name=NEW "
        "checkpoint.resume=runs/x; or set it back"
    ) in str(caught.value)


def test_another_rate_is_continued_in_a_new_folder(tiny_data: Path, in_folder: Path) -> None:
    """The way out that the line names works as it stands there."""
    arguments = [*TINY, f"data.path={tiny_data}", "run.name=old", "train.steps=5"]
    assert pretrain(arguments, 1) == 0
    arguments = [*arguments, "train.steps=7", "optimizer.lr=1e-4"]
    with pytest.raises(ConfigError, match=r"optimizer.lr was 0.001 and is now 0.0001; ") as caught:
        Start(configuration(arguments), 1).check()
    found = re.findall(r"in a new folder: (run\.name=\S+) (checkpoint\.resume=\S+); or set it back", str(caught.value))
    assert pretrain([*arguments, *found[0]], 1) == 0
    steps = [line["step"] for line in read_jsonl(Path("runs/NEW/metrics.jsonl")) if line["kind"] == "train"]
    assert steps == [6, 7]
    with pytest.raises(ConfigError) as caught:
        resume.check("runs/x", resume.changes(load([], []), load([], ["model.layers=3", "optimizer.lr=1"])))
    assert "checkpoint.resume=runs/x" not in str(caught.value), "another model has no use for that state"


def test_another_length_is_said_with_what_follows() -> None:
    before, now = load([], ["train.steps=100"]), load([], ["train.tokens=1M", "train.log_every=3"])
    assert resume.length_note(resume.changes(before, now)) == (
        "train.steps 100 -> None, train.tokens None -> 1000000: rates are now those of a run that had this length from "
        "its start"
    )
    assert resume.length_note(resume.changes(before, load([], ["train.steps=100", "train.log_every=3"]))) is None


def test_a_kill_between_the_two_renames_of_a_save_refuses_no_run(
    tiny_data: Path, in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint that was being replaced was the only one."""
    arguments = [*TINY, f"data.path={tiny_data}", "run.name=old", "train.steps=5"]
    assert pretrain(arguments, 1) == 0
    run_dir, rename = RunDir(Path("runs/old")), os.rename
    final, temporary = run_dir.checkpoint(5), run_dir.checkpoints / ".step-00000005.0a1b.tmp"
    shutil.copytree(final, temporary)

    def killed(source: Path, place: Path) -> None:
        if source == temporary:
            raise KeyboardInterrupt
        rename(source, place)

    with monkeypatch.context() as patch:
        patch.setattr(manager.os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            manager.commit(temporary, final, run_dir.latest)
    assert not final.exists()
    arguments = [*arguments, "train.steps=7"]
    before = sorted(run_dir.path.rglob("*"))
    assert main(["pretrain", *arguments, "--dry-run"]) == 0
    with pytest.raises(ConfigError, match=r"optimizer\.lr was"):
        Start(configuration([*arguments, "optimizer.lr=1e-4"]), 1).check()
    assert sorted(run_dir.path.rglob("*")) == before, "the checks change nothing"
    assert main(["pretrain", *arguments, "--nproc", "1"]) == 0
    assert [line["step"] for line in read_jsonl(run_dir.metrics) if line["kind"] == "train"] == [1, 2, 3, 4, 5, 6, 7]
    assert [path.name for path in steps_in(run_dir.checkpoints)] == ["step-00000005", "step-00000007"]
    assert not list(run_dir.checkpoints.glob(".*"))


def test_a_checkpoint_that_is_not_read_is_said(
    tiny_data: Path, in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run continues its own; whoever names another checkpoint than before is told, by the dry run, too."""
    arguments = [*TINY, f"data.path={tiny_data}"]
    for name, steps in (("other", 2), ("own", 3)):
        assert pretrain([*arguments, f"run.name={name}", f"train.steps={steps}"], 1) == 0

    run_dir = RunDir(Path("runs/own"))

    def said(*more: str) -> list[set[str]]:
        """By the dry run, and by the run, whose ranks speak in its log."""
        found = []
        for run in (["--dry-run"], ["--nproc", "1"]):
            run_dir.rank_log(0).write_text("")
            assert main(["pretrain", *arguments, "run.name=own", *more, *run]) == 0
            out = "".join((*capfd.readouterr(), run_dir.rank_log(0).read_text()))
            found.append(set(re.findall(r"runs/own has checkpoints .*", out)))
        return found

    for key, own, steps in (
        ("checkpoint.resume", "step-00000003", 3),
        ("checkpoint.resume", "step-00000003", 4),
        ("checkpoint.init_from", "step-00000004", 5),
    ):
        line = (
            f"runs/own has checkpoints of its own and continues from {own}: {key}=runs/other is not read; to begin "
            "with it choose another run.name"
        )
        assert said(f"{key}=runs/other", f"train.steps={steps}") == [{line}, {line}], "a run that is done, too"
    assert said("checkpoint.init_from=runs/other", "train.steps=6") == [set(), set()], "the same command again"
    assert said("checkpoint.resume=runs/own", "train.steps=7") == [set(), set()], "it is read"
    assert said("checkpoint.init_from=runs/other", "checkpoint.resume=never", "train.steps=2") == [set(), set()]
    assert (
        main(["pretrain", *arguments, "run.name=new", "checkpoint.resume=runs/other", "train.steps=3", "--dry-run"])
        == 0
    )
    assert "is not read" not in capfd.readouterr().out


def test_the_state_of_another_optimizer_is_refused(
    tiny_data: Path, in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its means of gradients are others; where they are the same ones, and before the first update, a run begins."""
    arguments = [*TINY, f"data.path={tiny_data}", "train.steps=2", "guard.on_spike=rollback"]
    for name in ("adamw", "muon", "adafactor"):
        assert pretrain([*arguments, f"run.name={name}", f"optimizer.name={name}"], 1) == 0
    arguments[-2:] = ["train.steps=3"]
    shutil.copytree("runs/adamw/checkpoints/step-00000000", "started")
    for before, now in (("adamw", "muon"), ("adamw", "adafactor"), ("muon", "adamw"), ("adafactor", "lamb")):
        for run in (["--dry-run"], ["--nproc", "1"]):
            more = [f"run.name={before}-{now}", f"checkpoint.resume=runs/{before}", f"optimizer.name={now}"]
            assert main(["pretrain", *arguments, *more, *run]) == 2
            assert capfd.readouterr().err.splitlines() == [
                f"gpt1-ds: optimizer.name={now}: checkpoint.resume=runs/{before} has the means of gradients that "
                f"optimizer.name={before} keeps, which are others; set it back, or take the weights alone: "
                f"checkpoint.init_from=runs/{before}"
            ]
    for source, now in (("runs/adamw", "adam2018"), ("runs/adamw", "lamb"), ("started", "muon")):
        more = [f"run.name={now}", f"checkpoint.resume={source}", f"optimizer.name={now}", "run.dir=again"]
        assert main(["pretrain", *arguments, *more, "--nproc", "1"]) == 0
    more = [
        "optimizer.name=muon",
        "checkpoint.resume=runs/adamw",
        "run.name=stored",
        "checkpoint.mirror=file:///tmp/no",
    ]
    start = Start(configuration([*arguments, *more]), 1)
    start.run_dir.create()
    start.run_dir.config.write_text(to_yaml(replace(start.resolved, optimizer=OptimizerConfig(name="adamw"))))
    with pytest.raises(ConfigError, match=r"has the means of gradients that optimizer\.name=adamw keeps"):
        start.check()  # no step was trained there, and nothing of another configuration can be in the store
    with pytest.raises(ConfigError, match=r"optimizer\.name was 'adamw' and is now 'muon'; set it back, choose"):
        resume.check("runs/x", resume.changes(load([], []), load([], ["optimizer.name=muon"])))


def test_rows_that_are_not_the_next_ones_are_said(
    tiny_data: Path, in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [*TINY, f"data.path={tiny_data}"]
    assert pretrain([*arguments, "run.name=old", "train.steps=2"], 1) == 0
    arguments += ["train.steps=3", "checkpoint.resume=runs/old"]
    begins = "checkpoint.resume=runs/old: it had read 16 rows of text by step 2, this run's batches begin at row"
    for name, more, line in (
        ("a", ["train.global_batch=16"], f"{begins} 32: 16 rows are skipped"),
        ("b", ["train.global_batch=4"], f"{begins} 8: 8 rows are read again"),
        ("c", ["train.batch_warmup=4", "train.batch_warmup_tokens=100k"], f"{begins} 8: 8 rows are read again"),
        (
            "d",
            ["run.seed=7"],
            "checkpoint.resume=runs/old: run.seed 1 -> 7: the rows come in another order than that in which it has "
            "read 16 of them by step 2; some are read again, others later",
        ),
        ("e", ["optimizer.lr=1e-4"], ""),
        ("f", [f"data.path=[{{path: {tiny_data}, weight: 3}}]"], ""),
    ):
        assert main(["pretrain", *arguments, *more, f"run.name={name}", "--dry-run"]) == 0
        said = re.findall(r"checkpoint\.resume=runs/old: .*", capfd.readouterr().out)
        assert said == ([line] if line else [])
        if name in "ad":
            assert main(["pretrain", *arguments, *more, f"run.name={name}", "--nproc", "1"]) == 0
            assert line in RunDir(Path("runs", name)).rank_log(0).read_text()


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ("objective.density=0.15", "objective.density=0.3", {"tokens of text in a row"}),
        ("model.context=64", "model.context=128", {"model.context", "tokens of text in a row"}),
        ("objective.copies=2", "objective.copies=3", {"objective.copies"}),
        (
            "data.path=[{path: a, weight: 2}, {path: b, weight: 6}]",
            "data.path=[{path: a}, {path: b, weight: 3}]",
            set(),
        ),
        ("data.path=[{path: a}, {path: b}]", "data.path=[{path: a}, {path: b, weight: 3}]", {"fractions of data.path"}),
    ],
)
def test_what_the_order_of_rows_depends_on(before: str, now: str, told: set[str]) -> None:
    preset = "pretrain/bert_books_cpu" if "copies" in now else "pretrain/t5_books_cpu"
    old, new = (resume._order(1, load([preset], ["data.path=a", one])) for one in (before, now))
    assert {key for key in old if old[key] != new[key]} == told
