"""Micro-batches that are launched as graphs. On a CPU a replay is the captured function again, on the same memory."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gpt1_ds.engine import graphs
from gpt1_ds.engine.graphs import SHAPES, WARM_UP, GraphedPasses, Replay, Tensors
from gpt1_ds.model import dropout
from tools.fakecuda.graphs import Repeats

MICRO_BATCHES, STEPS = 3, WARM_UP + 3


class Gradients:
    """Of one weight vector; `marks` is whether this step has written them."""

    def __init__(self) -> None:
        self.buffers, self.written = [torch.full((4,), 7.0)], False

    def marks(self) -> bool:
        return self.written

    def mark(self, marks: bool) -> None:
        self.written = marks


class Model:
    """The loss is the sum of weight x input, the scores are the inputs' sums; the first micro-batch of a step writes
    its gradients, the others add theirs, the last one halves their sum, like a mean over two ranks.
    """

    def __init__(self) -> None:
        self.weight, self.gradients, self.passes = torch.arange(4.0), Gradients(), 0

    def work(self, tensors: Tensors, number: int, last: bool) -> Tensors:
        self.passes += 1
        (x_B4,) = tensors
        (total,) = self.gradients.buffers
        (total.add_ if self.gradients.written else total.copy_)(x_B4.sum(0))
        if last:
            total.mul_(0.5)
        self.gradients.written = True
        return (x_B4 @ self.weight).sum(), x_B4.sum(1)

    def step(self, run: Callable[[Tensors, int, bool], Tensors], batches: list[Tensor]) -> list[Tensor]:
        """Results of the micro-batches, then the gradients; the update changes the weight in place."""
        self.gradients.written = False
        found: list[Tensor] = []
        for number, batch in enumerate(batches):
            found += run((batch,), number, number == len(batches) - 1)
        assert self.gradients.written
        self.weight.sub_(0.1 * self.gradients.buffers[0])
        return [*found, self.gradients.buffers[0].clone()]


class HostApart(Repeats):
    """A replay that leaves alone what the host knows, as a device does."""

    def __init__(self, gradients: Gradients) -> None:
        super().__init__(torch.device("cpu"))
        self.gradients, self.replays = gradients, 0

    def capture(self, work: Callable[[], Tensors]) -> tuple[Replay, Tensors]:
        repeat, results = super().capture(work)

        def replay() -> None:
            self.replays += 1
            written = self.gradients.written
            repeat()
            self.gradients.written = written

        return replay, results


class Wrong(HostApart):
    def capture(self, work: Callable[[], Tensors]) -> tuple[Replay, Tensors]:
        replay, results = super().capture(work)

        def wrong() -> None:
            replay()
            self.gradients.buffers[0][2] += 1e-6

        return wrong, results


class Replaces(HostApart):
    """Raises as torch does: the end of a broken capture has an error of its own."""

    def capture(self, work: Callable[[], Tensors]) -> tuple[Replay, Tensors]:
        try:
            dropout.scale("half")  # type: ignore[arg-type]  # what the model does within a capture, and may not
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")


class Refuses(HostApart):
    def capture(self, work: Callable[[], Tensors]) -> tuple[Replay, Tensors]:
        work()
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def graphed(model: Model, recorder: type[HostApart] = HostApart) -> GraphedPasses:
    made = recorder(model.gradients)
    return GraphedPasses(model.work, model.gradients, made, True, contextlib.nullcontext, lambda problem: [problem])


def batches(step: int, rows: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(rows, 4, generator=generator) for _ in range(MICRO_BATCHES)]


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_steps_are_the_ordinary_ones_to_the_bit() -> None:
    plain, model = Model(), Model()
    passes = graphed(model)
    for step in range(STEPS):
        assert same(model.step(passes.run, batches(step)), plain.step(plain.work, batches(step)))
    assert passes.problem is None
    assert passes.count == 3, "the first, those between, the last"
    assert passes.recorder.replays == 3 + 3 * (STEPS - WARM_UP - 1)  # type: ignore[attr-defined]


def test_results_outlive_the_next_launch() -> None:
    model = Model()
    passes = graphed(model)
    for step in range(STEPS):
        model.step(passes.run, batches(step))
    first = passes.run((torch.ones(2, 4),), 0, False)
    kept = [result.clone() for result in first]
    passes.run((torch.zeros(2, 4),), 0, False)
    assert same(list(first), kept)


def test_other_shapes_have_graphs_of_their_own_and_the_rest_none() -> None:
    plain, model = Model(), Model()
    passes = graphed(model)
    sizes = range(2, 2 + SHAPES + 1)
    for step in range(STEPS):
        for rows in sizes:
            assert same(model.step(passes.run, batches(step, rows)), plain.step(plain.work, batches(step, rows)))
    assert passes.problem is None
    assert passes.count == 3 * SHAPES


@pytest.mark.parametrize(
    ("recorder", "reason"),
    [
        (
            Wrong,
            "rank 0: a graph gives another loss or other gradients than the pass that it was captured from:"
            " gradient buffer 0 (1 of 4 numbers, by up to 1.01e-06); the ordinary pass has the same bits twice",
        ),
        (Refuses, "rank 0: RuntimeError: operation not permitted when stream is capturing"),
    ],
)
def test_a_graph_that_fails_is_given_up_in_one_line(
    recorder: type[HostApart], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, model = Model(), Model()
    passes = graphed(model, recorder)
    for step in range(STEPS):
        assert same(model.step(passes.run, batches(step)), plain.step(plain.work, batches(step))), f"step {step}"
    assert passes.problem == reason
    assert passes.count == 0
    said = f"train.cuda_graphs: micro-batches run without CUDA graphs from here on ({reason})\n"
    assert capsys.readouterr().err == said


def test_the_reason_is_the_first_error(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    passes = graphed(model, Replaces)
    for step in range(STEPS):
        model.step(passes.run, batches(step))
    assert re.fullmatch(r"rank 0: TypeError: .* \(gpt1_ds/model/dropout\.py:\d+\)", passes.problem or ""), (
        passes.problem
    )
    assert "TypeError" in caplog.text, "the whole traceback"
    assert "RuntimeError: operation failed due to a previous error during capture" in caplog.text


def test_a_pass_that_differs_from_itself_is_named() -> None:
    """Each pass of this model has another loss: no graph can have its bits, and the graph is not to blame."""
    model = Model()
    ordinary = model.work

    def work(tensors: Tensors, number: int, last: bool) -> Tensors:
        loss, *scores = ordinary(tensors, number, last)
        return loss + model.passes, *scores

    model.work = work  # type: ignore[method-assign]
    passes = graphed(model)
    for step in range(STEPS):
        model.step(passes.run, batches(step))
    told = "; the ordinary pass differs from itself, too: loss (1 of 1 numbers, by up to "
    assert told in (passes.problem or ""), passes.problem


def test_all_ranks_repeat_the_pass_where_one_differs() -> None:
    """The graph of this rank has the bits; another rank's has not, and its pass may hold collectives."""
    model = Model()
    passes = graphed(model)
    answers = iter([[None, None], [None, "loss"], [None, "another loss"]])
    passes.gather = lambda problem: next(answers)
    tensors = (batches(0)[0],)
    for _ in range(WARM_UP + 1):
        passes.run(tensors, 0, False)
    assert model.passes == WARM_UP + 1 + 1 + 1 + 1, "the ordinary pass, its capture, its replay, and the pass again"
    assert passes.problem == "rank 1: another loss"


def test_all_ranks_give_up_what_fails_on_one() -> None:
    """This rank captures well; another one says that it does not."""
    plain, model = Model(), Model()
    passes = graphed(model)
    passes.gather = lambda problem: [problem, "out of memory"]
    for step in range(STEPS):
        assert same(model.step(passes.run, batches(step)), plain.step(plain.work, batches(step)))
    assert passes.problem == "rank 1: out of memory"
    assert passes.recorder.replays == 0, "a replay would wait for the other rank"  # type: ignore[attr-defined]


def test_what_is_not_a_number_equals_itself() -> None:
    plain, model = Model(), Model()
    passes = graphed(model)
    for step in range(STEPS):
        bad = [batch * float("nan" if step == WARM_UP else 1) for batch in batches(step)]
        model.step(passes.run, bad)
        plain.step(plain.work, bad)
    assert passes.problem is None
    assert passes.count == 3


def test_a_last_micro_batch_that_reduces_nothing_is_like_the_others() -> None:
    model = Model()
    passes = graphed(model)
    passes.reduces = False
    passes.work = lambda tensors, number, last: model.work(tensors, number, False)
    for step in range(STEPS):
        model.step(passes.run, batches(step))
    assert passes.count == 2


def test_released_graphs_are_made_again() -> None:
    plain, model = Model(), Model()
    passes = graphed(model)
    for step in range(2 * STEPS):
        if step == STEPS:
            passes.release()
            assert passes.count == 0
        assert same(model.step(passes.run, batches(step)), plain.step(plain.work, batches(step)))
    assert passes.count == 3, "made again"


def test_warm_up_is_at_least_one_pass() -> None:
    assert graphs.WARM_UP >= 1, "the pass before capture compiles"
