"""From a fine-tuning study to its trials."""

import json
import re
from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.common.files import write_json
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import load, to_yaml
from gpt1_ds.data.build import build
from gpt1_ds.report.study_results import read_study_results, write_csv
from gpt1_ds.sweep.finetuning_study import Comparison, FinetuningStudy, StudyTask
from gpt1_ds.sweep.finetuning_trials import FinetuningSweep, check_tasks, write_controls
from gpt1_ds.tasks.example import hash_examples
from gpt1_ds.tasks.reading import read_task
from tests.helpers.finetuning_trials import FILE, planned
from tests.helpers.tasks import DEV, ROWS

WORDPIECE = Path(__file__).parents[2] / "golden" / "tokenizers-format-2" / "wordpiece-uncased"
CURVE = FILE + "layer_transfer: {tasks: [rte], layers: [-1, 0, 2]}\n"


def names(sweep: FinetuningSweep) -> list[str]:
    return [str(trial) for trial in sweep.trials]


def test_a_cell_per_task_variant_and_seed(tmp_path: Path) -> None:
    sweep = planned(tmp_path)
    assert len(sweep.trials) == 8
    assert names(sweep)[:3] == ["cola, full, seed 1", "cola, no pre-training, seed 1", "rte, full, seed 1"]
    trial = sweep.trials[5]
    assert str(trial) == "cola, no pre-training, seed 2"
    assert trial.run_dir.path == tmp_path / "runs" / "s" / "cola" / "no-pre-training" / "seed-2"
    assert trial.config.run.seed == 2
    assert trial.config.checkpoint.init_from == "nowhere"
    assert trial.config.task is not None
    assert (trial.config.task.name, trial.config.task.transfer_layers) == ("cola", -1)
    tracking = trial.config.tracking
    assert (tracking.group, tracking.facts) == ("s", {"study": "s", "arm": "no pre-training", "column": "cola"})


def test_the_curve_shares_the_tables_trials(tmp_path: Path) -> None:
    sweep = planned(tmp_path, CURVE)
    assert names(sweep)[8:] == ["rte, transfer 0, seed 1", "rte, transfer 0, seed 2"]
    points = [(layers, str(trial)) for layers, trial in sweep.curve]
    assert points[::2] == [
        (-1, "rte, no pre-training, seed 1"),
        (0, "rte, transfer 0, seed 1"),
        (2, "rte, full, seed 1"),  # the model's two layers are all there is
    ]
    assert all(trial in sweep.trials for _, trial in sweep.curve)


def test_the_curve_runs_trials_of_its_own_where_the_tables_are_not_the_same(tmp_path: Path) -> None:
    text = CURVE.replace("[full, no pre-training]", "{full: {optimizer.lr: 1e-5}}")
    sweep = planned(tmp_path, text)
    assert {trial.variant for _, trial in sweep.curve} == {"transfer nothing", "transfer 0", "transfer 2"}


def test_a_curve_may_have_other_seeds_and_a_task_of_its_own(tmp_path: Path) -> None:
    text = FILE.replace("finetune/rte]", "{preset: finetune/rte, table: false}]")
    sweep = planned(tmp_path, text + "layer_transfer: {tasks: [rte], layers: [0], seeds: [7]}\n")
    assert names(sweep)[4:] == ["rte, transfer 0, seed 7"]
    assert [(task["name"], task["table"]) for task in sweep.describe()["tasks"]] == [("cola", True), ("rte", False)]


def test_which_words_win(tmp_path: Path) -> None:
    text = FILE.replace("[full, no pre-training]", "{full: , low: {optimizer.lr: 1e-5}}")
    text = text.replace("finetune/rte", "{preset: finetune/rte, train.epochs: 5}") + "overrides: {train.epochs: 4}\n"
    sweep = planned(tmp_path, text, "optimizer.lr=3e-5")
    told = {(trial.task, trial.variant): trial.config for trial in sweep.trials}
    assert [told[task, "full"].train.epochs for task in ("cola", "rte")] == [4, 5]
    assert [told["cola", variant].optimizer.lr for variant in ("full", "low")] == [3e-5, 1e-5]


def test_a_problem_of_several_trials_is_told_once(tmp_path: Path) -> None:
    text = FILE.replace("finetune/rte", "{preset: finetune/rte, task.pth: x}") + "overrides: {train.epoch: 4}\n"
    with pytest.raises(ConfigError) as caught:
        planned(tmp_path, text)
    assert [problem.partition(". Did")[0] for problem in caught.value.problems] == [
        "s: cola, full: train.epoch: the section train has no key 'epoch'",
        "s: rte, full: task.pth: the section task has no key 'pth'",
    ]
    assert all("Did you mean" in problem for problem in caught.value.problems)


def test_presets_without_a_task(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tiny_cpu has no task section; choose a preset like finetune/cola"):
        planned(tmp_path, FILE.replace("finetune/rte", "pretrain/tiny_cpu"))


def test_more_layers_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere has no 3 layers; take -1 to 2"):
        planned(tmp_path, CURVE.replace("0, 2]", "3]"))


def with_files(folder: Path) -> FinetuningSweep:
    (folder / "train.csv").write_text(ROWS)
    (folder / "dev.csv").write_text(DEV)
    return planned(folder, f"checkpoint: x\nseeds: [1]\ntasks: [{{preset: finetune/table, task.path: {folder}}}]\n")


def test_the_tasks_files_are_read_before_anything_runs(tmp_path: Path) -> None:
    sweep = with_files(tmp_path)
    sweep.check()
    (tmp_path / "dev.csv").unlink()
    with pytest.raises(UserError, match="has no dev file"):
        sweep.check()


def test_a_study_that_was_killed_before_its_first_cell_runs_again(tmp_path: Path) -> None:
    """The scores of simple rules, which it writes at its start, were taken for the results of another study."""
    sweep = with_files(tmp_path)
    sweep.folder.mkdir(parents=True)
    write_json(RunDir(sweep.folder).study, sweep.describe())
    write_controls(sweep)
    write_csv(read_study_results(sweep.folder), sweep.folder / "results.csv")
    assert ",majority,," in (sweep.folder / "results.csv").read_text()
    sweep.check()


def test_a_finished_cell_of_another_configuration_is_refused(tmp_path: Path) -> None:
    sweep = with_files(tmp_path)
    run_dir = sweep.trials[0].run_dir
    run_dir.create()
    (run_dir.config).write_text(to_yaml(sweep.trials[0].config).replace("lr: 6.25e-05", "lr: 1e-3"))
    sweep.check()
    run_dir.done.touch()
    run_dir.evaluation.write_text("[]")
    with pytest.raises(UserError, match=r"ran with optimizer.lr=0.001, and the study now says 6.25e-05"):
        sweep.check()
    (run_dir.config).write_text(to_yaml(sweep.trials[0].config).replace("log_every: 10", "log_every: 3"))
    sweep.check()  # changes nothing about the result


def test_runs_of_an_arm_that_was_taken_out_are_told(tmp_path: Path) -> None:
    """The next table had no rows of them, and nothing said so."""
    first = planned(tmp_path)
    for trial in first.trials:
        trial.run_dir.create()
        trial.run_dir.config.touch()
    for trial in first.trials[:2]:  # full and no pre-training, of the first seed
        trial.run_dir.done.touch()
    RunDir(first.folder / "pretrained" / "GPT-1").create()  # models of a sweep of its own
    RunDir(first.folder / "pretrained").study.touch()
    (first.folder / "pretrained" / "GPT-1" / "config.yaml").touch()
    (first.folder / "pretrained" / "GPT-1" / "DONE").touch()
    assert list(planned(tmp_path).left_out()) == []
    (said,) = planned(tmp_path, FILE.replace("[full, no pre-training]", "[full]")).left_out()
    assert said == (
        f"{first.folder}: its tables leave out 1 run, of which this study has no cell: cola/no-pre-training/seed-1; "
        "add the cells again, or give the study another name"
    )


@pytest.mark.parametrize(("key", "value"), [("model.residual_dropout", "0.5"), ("train.label_smoothing", "0.3")])
def test_keys_of_the_model_and_the_targets_make_another_cell(key: str, value: str, tmp_path: Path) -> None:
    sweep = with_files(tmp_path)
    run_dir = sweep.trials[0].run_dir
    run_dir.create()
    run_dir.config.write_text(
        re.sub(rf"( {key.partition('.')[2]}): [\d.e-]+", rf"\1: {value}", to_yaml(sweep.trials[0].config))
    )
    run_dir.done.touch()
    run_dir.evaluation.write_text("[]")
    with pytest.raises(UserError, match=rf"ran with {key}={value}, and the study now says"):
        sweep.check()


def test_scores_of_other_examples_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = with_files(tmp_path)
    trial = sweep.trials[0]
    trial.run_dir.create()
    trial.run_dir.config.write_text(to_yaml(trial.config))
    trial.run_dir.done.touch()
    entry = {"task": "table", "split": "dev", "step": 9, "metrics": {"accuracy": 0.5}}
    entry["data"] = hash_examples(read_task(trial.section).splits["dev"])
    trial.run_dir.evaluation.write_text(json.dumps([entry]))
    sweep.check()
    assert not capsys.readouterr().err
    (tmp_path / "dev.csv").write_text(DEV.replace("x,yes", "x,no"))
    sweep.check()
    assert f"its scores of dev are of other examples than {tmp_path} now has" in capsys.readouterr().err


def test_choices_of_both_signs_have_folders_of_their_own(tmp_path: Path) -> None:
    names = [
        trial.config.run.name for trial in planned(tmp_path, FILE + "choose: {task.transfer_layers: [-1, 1]}\n").trials
    ]
    assert len(set(names)) == len(names) == 16
    assert names[0].endswith("task.transfer_layers-minus-1/seed-1")


@pytest.mark.parametrize(("value", "told"), [("0.5", "pearson 0.5000"), ("null", "pearson null")])
def test_a_score_that_is_not_defined_ends_no_sweep(tmp_path: Path, value: str, told: str) -> None:
    trial = planned(tmp_path).trials[0]
    trial.run_dir.create()
    trial.run_dir.evaluation.write_text(
        f'[{{"task": "x", "split": "dev", "step": 1, "metrics": {{"pearson": {value}, "spearman": 0.1}}}}]'
    )
    assert trial.result == told


def test_a_tokenizer_without_the_symbols_is_refused_before_a_model_is_trained(tmp_path: Path) -> None:
    """WordPiece has those of masked models; a causal model begins with <start>."""
    (tmp_path / "text.txt").write_text("The book was read. " * 40)
    (tmp_path / "train.csv").write_text("text,label\na,0\nb,1\n" * 8)
    (tmp_path / "dev.csv").write_text("text,label\nc,0\nd,1\n")
    build([tmp_path / "text.txt"], WORDPIECE, tmp_path / "data")
    words = [f"task.path={tmp_path}", "task.kind=classification", "task.columns={text: text, label: label}"]
    study = FinetuningStudy(name="two", tasks=[StudyTask(preset="finetune/table", name="mine", overrides=words)])
    causal, both = (
        load([], [f"data.path={tmp_path / 'data'}", *words])
        for words in ([], ["model.mask=bidirectional", "objective.kind=masked"])
    )
    check_tasks(study, load, (), {"BERT": both})
    with pytest.raises(UserError, match=r"two: pretrain.GPT: fine-tuning needs a token <start>: .* \(not wordpiece\)"):
        check_tasks(study, load, (), {"BERT": both, "GPT": causal})


@pytest.mark.parametrize(("counts", "told"), [((16, 16, 45), "16, 16, 45"), ((16,), "16"), ((16, None), "16, all")])
def test_a_trend_needs_two_numbers_before_a_model_is_trained(
    tmp_path: Path, counts: tuple[int | None, ...], told: str
) -> None:
    """A rehearsal of many parts makes small numbers equal."""
    (tmp_path / "train.csv").write_text("text,label\na,0\nb,1\n" * 30)
    (tmp_path / "dev.csv").write_text("text,label\nc,0\nd,1\n")
    words = [f"task.path={tmp_path}", "task.kind=classification", "task.columns={text: text, label: label}"]
    examples = [f"task.train_examples={'null' if count is None else count}" for count in counts]
    tasks = [
        StudyTask(preset="finetune/table", name=f"mine-{place}", overrides=[*words, one])
        for place, one in enumerate(examples)
    ]
    compare = [Comparison(first="a", second="b", trend=True)]
    study = FinetuningStudy(name="two", tasks=tasks, compare=compare)
    with pytest.raises(UserError, match=rf"\[0\].trend: task.train_examples of table are {told}; use two or more"):
        check_tasks(study, load, (), {})


def test_a_trials_result_is_its_own(tmp_path: Path) -> None:
    """Whatever else of it was evaluated afterwards."""
    trial = planned(tmp_path).trials[0]
    trial.run_dir.create()
    entry = {"task": "cola", "split": "dev", "step": 9, "metrics": {"matthews": 0.5}, "data": "a"}
    other = {**entry, "metrics": {"matthews": 0.1}}
    told = [entry, {**other, "step": 3}, {**other, "data": "b"}, {**other, "task": "sts"}]
    trial.run_dir.evaluation.write_text(json.dumps(told))
    assert trial.result == "matthews 0.5000"
