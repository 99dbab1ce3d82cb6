"""Steps that read their token's column from memory, as a CUDA graph does, write what ordinary steps write. On a CPU a
replay is the captured function again, on the same memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpt1_ds.engine.graphs import Replay, Tensors
from gpt1_ds.evaluation import decoding, graphed_steps
from gpt1_ds.evaluation.decoding import write
from gpt1_ds.evaluation.graphed_steps import WARM_UP, GraphedSteps
from gpt1_ds.evaluation.load import Loaded
from gpt1_ds.evaluation.sampling import Sampling
from gpt1_ds.model.caches import Caches
from tests.unit.evaluation.test_decoding import Models, models, prompts  # noqa: F401
from tools.fakecuda.graphs import Repeats

WIDTH = 5  # columns of a graph, so that a text has several
Work = Callable[[], Tensors]
BEFORE = Path(graphed_steps.__file__).read_text().partition("self.recorder.capture(work)")[0]
CAPTURE = f"gpt1_ds/evaluation/graphed_steps.py:{len(BEFORE.splitlines())}"


class Recorder(Repeats):
    """Counts the replays."""

    replays = 0

    def capture(self, work: Work) -> tuple[Replay, Tensors]:
        repeat, results = super().capture(work)

        def replay() -> None:
            self.replays += 1
            repeat()

        return replay, results


class Wrong(Recorder):
    def capture(self, work: Work) -> tuple[Replay, Tensors]:
        replay, results = super().capture(work)

        def wrong() -> None:
            replay()
            results[0][0, 0] += 1e-6

        return wrong, results


class Refuses(Recorder):
    def capture(self, work: Work) -> tuple[Replay, Tensors]:
        work()
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type[Recorder]], list[GraphedSteps]]]:
    """Gives every batch steps that become graphs; returns them."""

    def install(recorder: type[Recorder] = Recorder) -> list[GraphedSteps]:
        found: list[GraphedSteps] = []

        def graphs(_model: object, step: graphed_steps.Step, caches: Caches, lock: object) -> GraphedSteps:
            found.append(GraphedSteps(step, caches, recorder(torch.device("cpu")), lock))  # type: ignore[arg-type]
            return found[-1]

        monkeypatch.setattr(graphed_steps, "WIDTH", WIDTH)
        monkeypatch.setattr(decoding, "graphed_steps", graphs)
        return found

    torch.use_deterministic_algorithms(True)  # memory that nothing was written to holds no numbers then
    yield install
    torch.use_deterministic_algorithms(False)


def texts(loaded: Loaded, sampling: Sampling, count: int = 7) -> list[list[int]]:
    return write(loaded.model, loaded.tokenizer, prompts(loaded, count), sampling, seeds=range(count))


@pytest.mark.parametrize("kind", ["causal", "prefix", "relative prefix", "encoder_decoder"])
@pytest.mark.parametrize("count", [1, 7], ids=["one row", "rows of several lengths"])
def test_they_write_what_ordinary_steps_write(
    kind: str,
    count: int,
    models: Models,  # noqa: F811
    made: Callable[..., list[GraphedSteps]],
) -> None:
    """Also beyond the context, where the caches begin anew."""
    loaded = models(kind)
    for sampling in (Sampling(20, 0, min_tokens=20), Sampling(20, 1.0, top_p=0.95, min_tokens=20)):
        wanted = texts(loaded, sampling, count)
        found = made()
        assert texts(loaded, sampling, count) == wanted
        assert all(graphs.problem is None for graphs in found)
        assert sum(graphs.recorder.replays for graphs in found) > 5  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["causal", "relative prefix", "encoder_decoder"])
def test_their_logits_are_those_of_ordinary_steps(
    kind: str,
    models: Models,  # noqa: F811
    made: Callable[..., list[GraphedSteps]],
) -> None:
    loaded, sampling = models(kind), Sampling(12, 0, min_tokens=12)
    seen: list[list[Tensor]] = []

    def watched(rows: decoding._Rows) -> Tensor:
        seen[-1].append(original(rows).clone())
        return seen[-1][-1].clone()

    original = decoding._Rows._next_logits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding._Rows, "_next_logits", watched)
        for install in (None, made):
            seen.append([])
            if install is not None:
                install()
            texts(loaded, sampling)
    assert len(seen[0]) == len(seen[1]) > WARM_UP
    for wanted_RV, found_RV in zip(*seen, strict=True):
        torch.testing.assert_close(found_RV, wanted_RV, atol=1e-5, rtol=1e-5)


def test_rows_that_end_leave_the_graph(models: Models, made: Callable[..., list[GraphedSteps]]) -> None:  # noqa: F811
    loaded = models("causal")
    sampling = Sampling(20, 1.0)

    def stopped(ids: list[int]) -> bool:
        return len(ids) % 7 == 6 and ids[0] % 2 == 0

    def write_them() -> list[list[int]]:
        return write(loaded.model, loaded.tokenizer, prompts(loaded), sampling, seeds=range(7), stopped=stopped)

    wanted, found = write_them(), made()
    assert write_them() == wanted
    assert len({len(text) for text in wanted}) > 1
    assert found[0].recorder.replays > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["causal", "relative prefix", "encoder_decoder"])
def test_beams_are_those_of_ordinary_steps(
    kind: str,
    models: Models,  # noqa: F811
    made: Callable[..., list[GraphedSteps]],
) -> None:
    """Rows change their order at each step, in the memory that the graph reads."""
    loaded = models(kind)
    for sampling in (Sampling(12, min_tokens=12, beams=3), Sampling(14, min_tokens=2, beams=4, length_alpha=0.5)):
        wanted = texts(loaded, sampling)
        found = made()
        assert texts(loaded, sampling) == wanted
        assert sum(graphs.recorder.replays for graphs in found) > 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("recorder", "reason"),
    [
        (Wrong, "a graph gives other logits than the pass that it was captured from"),
        (
            Refuses,
            f"RuntimeError: operation not permitted when stream is capturing ({CAPTURE})",
        ),
    ],
)
def test_a_graph_that_fails_is_given_up_in_one_line(
    recorder: type[Recorder],
    reason: str,
    models: Models,  # noqa: F811
    made: Callable[..., list[GraphedSteps]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    loaded, sampling = models("causal"), Sampling(12, 0, min_tokens=12)
    wanted = texts(loaded, sampling, 1)
    made(recorder)
    capsys.readouterr()
    assert texts(loaded, sampling, 1) == wanted
    assert capsys.readouterr().err == f"text is written without CUDA graphs ({reason})\n"


@pytest.mark.parametrize(("kind", "has_graphs"), [("causal", True), ("encoder_decoder", True), ("lstm", False)])
def test_an_lstm_has_none(
    kind: str,
    has_graphs: bool,
    models: Models,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if this were a GPU on which they were proven."""
    model, recorder = models(kind).model, Recorder(torch.device("cpu"))
    monkeypatch.setattr(graphed_steps.kernels, "available", lambda _: True)
    monkeypatch.setattr(graphed_steps, "_recorder", lambda _: recorder)
    made = graphed_steps.graphed_steps(model, lambda tokens_1R: tokens_1R, model.caches(8), contextlib.nullcontext())
    assert (made is not None) is has_graphs
