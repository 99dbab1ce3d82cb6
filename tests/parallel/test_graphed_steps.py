"""Whole steps of the engine whose micro-batches are launched as graphs; a replay is the pass again, on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt1_ds.engine.graphs import WARM_UP
from gpt1_ds.launcher import launch

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MODEL = ["model.layers=2", "model.width=32", "model.heads=2", "model.context=16", "train.precision=bf16"]
STEPS = WARM_UP + 3
BACKWARD = (ROOT / "gpt1_ds/engine/plain.py").read_text().partition("self.deepspeed.backward(loss)")[0].count("\n") + 1
NO_CAPTURE = f"RuntimeError: no capture today (gpt1_ds/engine/plain.py:{BACKWARD})"


def as_on_cuda(how: str) -> None:
    """Engines of this rank do what they do on CUDA. `how`: fails, that on the last rank the backward pass of a capture
    ends with an error.
    """
    from types import SimpleNamespace

    from gpt1_ds.engine import plain
    from gpt1_ds.engine.deepspeed import bf16, install, micro_batch_graphs, overlap
    from tools.fakecuda.graphs import Repeats

    class Engine(plain.DenseEngine):
        """A replay leaves alone what only the host knows, as a device does."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            if self.graphs is not None:
                self.graphs.recorder.capture = self.captured

        def captured(self, work: Any) -> Any:
            assert self.graphs is not None
            gradients, reduce = self.graphs.gradients, self.deepspeed.allreduce_gradients

            def fail(*_: Any, **__: Any) -> None:
                reduce()
                raise RuntimeError("no capture today")

            if how == "fails" and self.groups.rank == self.groups.world - 1:
                self.deepspeed.allreduce_gradients = fail
            try:
                repeat, results = Repeats(self.device).capture(work)
            finally:
                self.deepspeed.allreduce_gradients = reduce

            def replay() -> None:
                marks = gradients.marks()
                repeat()
                gradients.mark(marks)

            return replay, results

    install.decides_on_device = bf16.decides_on_device = overlap.overlaps = lambda _: True
    overlap.BUCKET_ELEMENTS = 1000
    micro_batch_graphs.CudaRecorder = Repeats  # this rank ends with the test
    micro_batch_graphs.kernels = SimpleNamespace(available=lambda _: True)
    plain.DenseEngine = Engine


def train_here(overrides: list[str], how: str) -> Any:
    """(losses and norms, masters, graphs in use, why there are none, phases of captures).
    `how`: plain, graphs or fails.
    """
    from gpt1_ds.data.sources import open_data
    from gpt1_ds.engine.build import batch_shape, release_engines, training_batches
    from tests.helpers.engines import on_engine, pieces

    def train(engine: Any, config: Any) -> Any:
        heard: list[str] = []
        engine.progress = heard.append
        data, shape = open_data(config), batch_shape(config, engine.groups)
        numbers = []
        for step in range(1, STEPS + 1):
            here = data.training.batch(step, shape.of_batch(step, config.batch_sizes)).micro_batches
            batches = training_batches(engine.objective, here, config.run.seed, step)
            result = engine.step(batches, 1e-3)
            numbers.append((result.loss, result.grad_norm))
            if step == 2:
                numbers.append((engine.evaluate(batches), 0.0))
        found = engine.graphs
        captures = [phase for phase in heard if "capture" in phase]
        told = numbers, pieces(engine, "master"), found and found.count, found and found.problem, captures
        release_engines()
        assert found is None or found.count == 0, "else NCCL waits for them when process groups end"
        return told

    as_on_cuda(how)
    return on_engine([*overrides, f"train.cuda_graphs={'off' if how == 'plain' else 'auto'}"], 500, train)


@pytest.mark.parametrize(
    ("layout", "ranks", "micro_batch", "graphs"),
    [
        ([], 1, 6, 1),  # one micro-batch a step
        ([], 1, 2, 2),  # the first writes gradients, the others add to them
        ([], 2, 1, 3),  # and the last one reduces them
        (["parallel.tensor=2", "train.recompute=block"], 2, 3, 2),
    ],
)
def test_graphed_steps_are_the_ordinary_ones(
    layout: list[str], ranks: int, micro_batch: int, graphs: int, tiny_data: Path
) -> None:
    overrides = [*MODEL, *layout, "train.global_batch=6", f"train.micro_batch={micro_batch}", f"data.path={tiny_data}"]
    plain, graphed, failing = (
        launch.run("tests.parallel.test_graphed_steps:train_here", (overrides, how), ranks)
        for how in ("plain", "graphs", "fails")
    )
    for wanted, *others in zip(plain, graphed, failing, strict=True):
        for found in others:
            assert found[0] == wanted[0]
            for (info, _, values), (_, _, expected) in zip(found[1], wanted[1], strict=True):
                assert np.array_equal(values, expected), info.name
        assert wanted[2:4] == (None, None)
        assert others[0][2:4] == (graphs, None)
        assert others[1][2:4] == (0, f"rank {ranks - 1}: {NO_CAPTURE}")
        assert len(others[0][4]) == graphs
        assert len(others[1][4]) == 1


def test_graphs_of_a_step_with_fewer_micro_batches_are_dropped(tiny_data: Path) -> None:
    """The first three steps have one, of which a graph is captured, the others two: their losses are means of two."""
    overrides = [*MODEL, "train.global_batch=4", "train.micro_batch=2", f"data.path={tiny_data}"]
    overrides += ["train.batch_warmup=2", "train.batch_warmup_tokens=96"]
    (plain,), (graphed,) = (
        launch.run("tests.parallel.test_graphed_steps:train_here", (overrides, how), 1) for how in ("plain", "graphs")
    )
    assert graphed[0] == plain[0]
    assert len(graphed[4]) == 1
    assert graphed[2:4] == (0, None), "the new ones warm up"


def remembered_here(overrides: list[str]) -> tuple[int, int, bool]:
    """(weights, those whose AccumulateGrad node outlives a step, whether a copy can begin within a capture). Such a
    node runs in the stream in which it was made; a capture must therefore make its own.
    """
    import gc

    from gpt1_ds.engine.build import batch_shape, training_batches
    from gpt1_ds.engine.deepspeed.micro_batch_graphs import _capturing
    from tests.helpers.engines import on_engine

    def train(engine: Any, config: Any) -> tuple[int, int, bool]:
        from gpt1_ds.data.sources import open_data

        def node(weight: Any) -> Any:
            return weight.view_as(weight).grad_fn.next_functions[0][0]

        batch = open_data(config).training.batch(1, batch_shape(config, engine.groups)).micro_batches
        engine.step(training_batches(engine.objective, batch, config.run.seed, 1), 1e-3)
        weights = list(engine.module.parameters())
        for weight in weights:
            node(weight).metadata["seen"] = True
        engine.step(training_batches(engine.objective, batch, config.run.seed, 2), 1e-3)
        gc.collect()
        with _capturing(engine, None):
            locked = engine.sender.lock.locked()
        return len(weights), sum("seen" in node(weight).metadata for weight in weights), locked

    as_on_cuda("plain")
    return on_engine([*overrides, "train.cuda_graphs=off"], 500, train)  # type: ignore[no-any-return]


@pytest.mark.parametrize("layout", [[], ["parallel.tensor=2", "train.recompute=block"]])
def test_no_weight_remembers_the_stream_of_an_earlier_pass(layout: list[str], tiny_data: Path) -> None:
    """DeepSpeed itself keeps what autograd recorded while it was built, and with it every weight's node."""
    overrides = [*MODEL, *layout, "train.global_batch=4", "train.micro_batch=2", f"data.path={tiny_data}"]
    for weights, kept, locked in launch.run(f"{__name__}:remembered_here", (overrides,), 2):
        assert weights > 20
        assert kept == 0
        assert locked


def check_here(how: str, overrides: list[str]) -> Any:
    import torch

    from gpt1_ds.config import load
    from gpt1_ds.diagnostics import steps
    from gpt1_ds.engine.session import distributed_session

    as_on_cuda(how)
    config = load([], [*MODEL, "train.global_batch=4", "train.micro_batch=2", "model.vocab_size=500", *overrides])
    with distributed_session(config) as groups:
        return steps.Steps(config, groups, torch.device("cpu")).graph()


@pytest.mark.parametrize(
    ("how", "overrides", "ok", "value", "note"),
    [
        ("graphs", [], True, 0, ""),
        ("fails", [], False, 2, f"rank 1: {NO_CAPTURE}; training runs without CUDA graphs here"),
        ("graphs", ["train.precision=fp32"], True, None, "the engine makes none with this configuration"),
    ],
)
def test_the_self_proof_says_whether_a_graph_repeats(
    how: str, overrides: list[str], ok: bool, value: int | None, note: str
) -> None:
    for record in launch.run("tests.parallel.test_graphed_steps:check_here", (how, overrides), 2):
        assert record.name.startswith("graph")
        assert (record.ok, record.value) == (ok, value)
        assert record.note.startswith(note)


def overlap_here(lost: bool) -> Any:
    """`lost`: the sum of a bucket does not reach the gradients."""
    from gpt1_ds.config import load
    from gpt1_ds.diagnostics import steps
    from gpt1_ds.engine.deepspeed import overlap
    from gpt1_ds.engine.session import distributed_session
    from gpt1_ds.model import proof

    as_on_cuda("plain")
    begun = []
    begin = overlap.FlatReduction.begin
    overlap.overlaps = lambda _: proof._DECIDED == [True]
    overlap.FlatReduction.begin = lambda self: begun.append(begin(self))  # type: ignore[func-returns-value]
    if lost:
        values = overlap.FlatReduction._values
        overlap.FlatReduction._values = lambda self, bucket: values(self, bucket).clone()
    config = load([], [*MODEL, "train.global_batch=4", "train.micro_batch=2", "model.vocab_size=500"])
    with distributed_session(config) as groups:
        return steps.overlap(config, groups), len(begun)


@pytest.mark.parametrize("lost", [False, True])
def test_the_self_proof_compares_reductions(lost: bool) -> None:
    for record, begun in launch.run(f"{__name__}:overlap_here", (lost,), 2):
        assert begun == 3, "one engine of two overlaps"
        assert record.ok is not lost, record
        assert record.limit == 1e-5
