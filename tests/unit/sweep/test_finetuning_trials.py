"""From a study to its cells."""

from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.config import to_yaml
from gpt1_ds.sweep.finetuning_trials import Plan, check
from tests.helpers.finetuning_trials import FILE, planned
from tests.helpers.tasks import DEV, ROWS

CURVE = FILE + "layer_transfer: {tasks: [rte], layers: [-1, 0, 2]}\n"


def names(plan: Plan) -> list[str]:
    return [str(cell) for cell in plan.cells]


def test_a_cell_per_task_variant_and_seed(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert len(plan.cells) == 8
    assert names(plan)[:3] == ["cola, full, seed 1", "cola, no pre-training, seed 1", "rte, full, seed 1"]
    cell = plan.cells[5]
    assert str(cell) == "cola, no pre-training, seed 2"
    assert cell.run_dir.path == tmp_path / "runs" / "s" / "cola" / "no-pre-training" / "seed-2"
    assert cell.config.run.seed == 2
    assert cell.config.checkpoint.init_from == "nowhere"
    assert cell.config.task is not None
    assert (cell.config.task.name, cell.config.task.transfer_layers) == ("cola", -1)


def test_the_curve_shares_the_tables_cells(tmp_path: Path) -> None:
    plan = planned(tmp_path, CURVE)
    assert names(plan)[8:] == ["rte, transfer 0, seed 1", "rte, transfer 0, seed 2"]
    points = [(point.layers, str(point.cell)) for point in plan.points]
    assert points[::2] == [
        (-1, "rte, no pre-training, seed 1"),
        (0, "rte, transfer 0, seed 1"),
        (2, "rte, full, seed 1"),  # the model's two layers are all there is
    ]
    assert all(point.cell in plan.cells for point in plan.points)


def test_the_curve_runs_cells_of_its_own_where_the_tables_are_not_the_same(tmp_path: Path) -> None:
    text = CURVE.replace("[full, no pre-training]", "{full: {optimizer.lr: 1e-5}}")
    plan = planned(tmp_path, text)
    assert {point.cell.variant for point in plan.points} == {"transfer nothing", "transfer 0", "transfer 2"}


def test_a_curve_may_have_other_seeds_and_a_task_of_its_own(tmp_path: Path) -> None:
    text = FILE.replace("finetune/rte]", "{preset: finetune/rte, table: false}]")
    plan = planned(tmp_path, text + "layer_transfer: {tasks: [rte], layers: [0], seeds: [7]}\n")
    assert names(plan)[4:] == ["rte, transfer 0, seed 7"]
    assert [(task["name"], task["table"]) for task in plan.describe()["tasks"]] == [("cola", True), ("rte", False)]


def test_which_words_win(tmp_path: Path) -> None:
    text = FILE.replace("[full, no pre-training]", "{full: , low: {optimizer.lr: 1e-5}}")
    text = text.replace("finetune/rte", "{preset: finetune/rte, train.epochs: 5}") + "overrides: {train.epochs: 4}\n"
    plan = planned(tmp_path, text, "optimizer.lr=3e-5")
    told = {(cell.task, cell.variant): cell.config for cell in plan.cells}
    assert [told[task, "full"].train.epochs for task in ("cola", "rte")] == [4, 5]
    assert [told["cola", variant].optimizer.lr for variant in ("full", "low")] == [3e-5, 1e-5]


def test_a_problem_of_several_cells_is_told_once(tmp_path: Path) -> None:
    text = FILE.replace("finetune/rte", "{preset: finetune/rte, task.pth: x}") + "overrides: {train.epoch: 4}\n"
    with pytest.raises(ConfigError) as caught:
        planned(tmp_path, text)
    assert [problem.partition(" not in ")[0] for problem in caught.value.problems] == [
        "s: cola, full: train.epoch: Key 'epoch'",
        "s: rte, full: task.pth: Key 'pth'",
    ]
    assert all("Did you mean" in problem for problem in caught.value.problems)


def test_presets_without_a_task(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tiny_cpu has no task section; choose a preset like finetune/cola"):
        planned(tmp_path, FILE.replace("finetune/rte", "pretrain/tiny_cpu"))


def test_more_layers_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere has no 3 layers; take -1 to 2"):
        planned(tmp_path, CURVE.replace("0, 2]", "3]"))


def with_files(folder: Path) -> Plan:
    (folder / "train.csv").write_text(ROWS)
    (folder / "dev.csv").write_text(DEV)
    return planned(folder, f"checkpoint: x\nseeds: [1]\ntasks: [{{preset: finetune/table, task.path: {folder}}}]\n")


def test_the_tasks_files_are_read_before_anything_runs(tmp_path: Path) -> None:
    plan = with_files(tmp_path)
    check(plan)
    (tmp_path / "dev.csv").unlink()
    with pytest.raises(UserError, match="has no dev file"):
        check(plan)


def test_a_finished_cell_of_another_configuration_is_refused(tmp_path: Path) -> None:
    plan = with_files(tmp_path)
    run_dir = plan.cells[0].run_dir
    run_dir.create()
    (run_dir.config).write_text(to_yaml(plan.cells[0].config).replace("lr: 6.25e-05", "lr: 1e-3"))
    check(plan)
    run_dir.done.touch()
    run_dir.evaluation.write_text("[]")
    with pytest.raises(UserError, match=r"ran with optimizer.lr=0.001, and the study now says 6.25e-05"):
        check(plan)
    (run_dir.config).write_text(to_yaml(plan.cells[0].config).replace("log_every: 10", "log_every: 3"))
    check(plan)  # changes nothing about the result
