"""A context that grows: positions that the checkpoint lacks are the same on every layout, and so are the losses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.config import load
from gpt1_ds.config.sections import with_vocabulary
from gpt1_ds.launcher import launch
from gpt1_ds.model.names import ParameterInfo, initial_value
from tests.helpers.foreign import master
from tools import runs
from tools.layouts import LAYOUTS, ONE, RECIPE, Layout, whole_weights
from tools.resume_matrix import relative, save_on

SAVED, MORE, SHORT, LONG = 3, 2, 32, 80
POSITIONS = "positions.weight"
NAMES = ("zero3 recompute", "tp2 pp2 sequence recompute")
CHOSEN = [layout for layout in LAYOUTS if layout.name in NAMES]
ARGUMENTS = [*RECIPE, f"model.context={LONG}", "train.eval_every=0", f"train.steps={SAVED + MORE}"]


@pytest.fixture(scope="module")
def saved(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_on(ONE, tiny_data, tmp_path_factory.mktemp("short"), "fp32", SAVED, [f"model.context={SHORT}"])


def grow_here(overrides: list[str], checkpoint: Path) -> dict[str, tuple[list[float], list[Any], list[Any]]]:
    """Runs on every rank: by checkpoint.positions the losses of the next steps, and this rank's pieces of the masters
    and of the first moments before them.
    """
    import contextlib

    import torch.distributed as dist

    from gpt1_ds.checkpoint.restore import restore
    from gpt1_ds.checkpoint.shard import slice_of
    from gpt1_ds.engine import master_weights
    from gpt1_ds.engine.build import build_engine
    from gpt1_ds.engine.process_groups import ProcessGroups, connect
    from tools.families import open_workload
    from tools.layouts import sequence_parallel_on_cpu

    config, found = load([], overrides), {}
    with sequence_parallel_on_cpu() if config.parallel.sequence else contextlib.nullcontext():
        torch.set_num_threads(1)
        connect(120)
        groups = ProcessGroups(config)
        workload = open_workload(config, groups)
        engine = build_engine(workload.config, groups, objective=workload.objective)
        for how in ("draw", "repeat"):
            config = replace(workload.config, checkpoint=replace(config.checkpoint, positions=how))
            restore(engine, config, checkpoint)
            own = [one for one in master_weights.saved_fragments(engine) if one.info.name == POSITIONS]
            pieces = [(one.info, slice_of(one)) for one in own]
            rows = [(*piece, one.master.numpy().copy()) for piece, one in zip(pieces, own, strict=True)]
            moments = [(*piece, one.moments["exp_avg"].numpy().copy()) for piece, one in zip(pieces, own, strict=True)]
            batches = [workload.batch(step, step) for step in range(SAVED + 1, SAVED + MORE + 1)]
            found[how] = [engine.step(batch.micro_batches, 1e-3).loss for batch in batches], rows, moments
        dist.destroy_process_group()
    return found


def grown(layout: Layout, data: Path, checkpoint: Path) -> dict[str, tuple[list[float], np.ndarray, np.ndarray]]:
    arguments = [*ARGUMENTS, f"data.path={data}", *layout.overrides]
    ranks = launch.run("tests.parallel.test_longer_context:grow_here", (arguments, checkpoint), layout.ranks)
    return {
        how: (losses, *(whole_weights([rank[how][part] for rank in ranks])[POSITIONS] for part in (1, 2)))
        for how, (losses, *_) in ranks[0].items()
    }


@pytest.fixture(scope="module")
def alone(saved: Path, tiny_data: Path) -> dict[str, tuple[list[float], np.ndarray, np.ndarray]]:
    return grown(ONE, tiny_data, saved)


def test_what_new_positions_are(alone: dict[str, Any], saved: Path) -> None:
    """Drawn as at the start of a run that had them from its first step on, or the learned ones again."""
    config = with_vocabulary(load([], ARGUMENTS), 500)
    fresh = initial_value(ParameterInfo.whole(architecture(config.model, 500).parameters[POSITIONS]), config.run.seed)
    learned = master(saved, POSITIONS).numpy()
    assert learned.shape == (SHORT, 64)
    _, drawn, moments = alone["draw"]
    assert np.array_equal(drawn, np.concatenate([learned, fresh[SHORT:].numpy()]))
    assert np.abs(moments[:SHORT]).min(axis=1).max() > 0
    assert not moments[SHORT:].any()
    losses, repeated, moments = alone["repeat"]
    assert np.array_equal(repeated, np.concatenate([learned, learned, learned[: LONG - 2 * SHORT]]))
    assert not moments[SHORT:].any()
    assert losses != alone["draw"][0]


@pytest.mark.parametrize("layout", CHOSEN, ids=lambda layout: layout.name.replace(" ", "-"))
def test_every_layout_continues_as_one_process(
    layout: Layout, alone: dict[str, Any], saved: Path, tiny_data: Path
) -> None:
    for how, (losses, rows, moments) in grown(layout, tiny_data, saved).items():
        wanted, rows_alone, moments_alone = alone[how]
        assert np.array_equal(rows, rows_alone)
        assert np.array_equal(moments, moments_alone)
        assert relative(losses, wanted) <= 1e-5


def test_a_run_continues_with_a_longer_context(saved: Path, tiny_data: Path, tmp_path: Path) -> None:
    """In its own folder, where it has to be asked for; from another run's checkpoint; with the weights alone."""
    arguments = [*runs.TINY, f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=2"]
    longer = ["model.context=48", "train.steps=4", "checkpoint.positions=draw"]
    assert runs.pretrain([*arguments, "run.name=a"], 1) == 0
    first = master(find_checkpoint(tmp_path / "a"), POSITIONS)
    assert runs.pretrain([*arguments, "run.name=b", f"checkpoint.resume={tmp_path}/a", *longer], 1) == 0
    assert runs.pretrain([*arguments, "run.name=c", f"checkpoint.init_from={tmp_path}/a", *longer], 1) == 0
    assert runs.pretrain([*arguments, "run.name=a", *longer], 1) == 0
    rates = {name: [line["learning_rate"] for line in lines(tmp_path / name)] for name in "abc"}
    assert rates["a"][2:] == rates["b"], "a resumed run is at step 3"
    assert len(rates["c"]) == 4, "one with the weights alone begins anew"
    assert [line["tokens"] for line in lines(tmp_path / "a")] == [256, 512, 896, 1280]
    assert [line["loss"] for line in lines(tmp_path / "a")][2:] == [line["loss"] for line in lines(tmp_path / "b")]
    assert master(find_checkpoint(tmp_path / "a"), POSITIONS).shape == (48, 32)
    assert first.shape == (32, 32)


def lines(folder: Path) -> list[dict[str, Any]]:
    from gpt1_ds.common.rundir import read_jsonl

    return [line for line in read_jsonl(folder / "metrics.jsonl") if line["kind"] == "train"]
