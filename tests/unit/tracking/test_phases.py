"""What a profile says follows from the spans that were recorded."""

from __future__ import annotations

import pytest

from gpt1_ds.tracking.phases import Operator, Recording, TimeSpan, combine, counted, rank_summary, table, union


def chain(begin: float, *phases: tuple[str, float]) -> list[TimeSpan]:
    """Spans one after another: (name, seconds) each."""
    spans = []
    for name, seconds in phases:
        spans.append(TimeSpan(name, begin, begin + seconds))
        begin += seconds
    return spans


FIRST = [
    *(("receiving activations of micro-batch 0", 1.0), ("forward of micro-batch 0", 2.0), ("loss", 0.5)),
    *(("backward of micro-batch 0", 3.5), ("sending gradients of micro-batch 0", 0.25)),
    *(("reduction of tied gradients", 0.25), ("update", 1.0), ("agreement", 0.5)),
]


def recording(*extra: tuple[str, float]) -> Recording:
    """Two steps of 9 and 10 seconds from second 100 on."""
    first, second = chain(100, *FIRST), chain(109, *FIRST, *extra)
    mm = Operator(name="aten::mm", shapes="2x3  3x4", calls=4, seconds=2.0, flops=96)
    steps = [TimeSpan("7", 100, 109), TimeSpan("8", 109, second[-1].end)]
    memory = [1000 + place for place in range(len(first) + len(second))]
    return Recording(steps=steps, phases=first + second, memory=memory, operators=[mm])


def test_what_is_announced_counts_as_its_kind() -> None:
    names = [span.name for span in counted(chain(0, *FIRST))]
    assert names == ["receive", "forward", "loss", "backward", "send", "reduce", "optimizer", "agreement"]


def test_an_engine_that_evaluates_or_probes_a_save_does_not_train() -> None:
    inner = [("forward of micro-batch 0", 1.0), ("loss", 1.0), ("receiving activations of micro-batch 0", 1.0)]
    said = [("evaluation", 0.0), *inner, ("save", 1.0), ("evaluation of micro-batch 0", 1.0), ("loss", 1.0)]
    names = [span.name for span in counted(chain(0, *said, ("data", 1.0), ("load of micro-batch 0", 1.0), *inner))]
    assert names == [*["evaluation"] * 4, *["save"] * 3, "data", "data", "forward", "loss", "receive"]


def test_a_ranks_share() -> None:
    share = rank_summary(recording(("save", 1.0)))
    first, second = share["steps"]
    assert first["seconds"] == 9
    assert first["phases"] == {
        **{"forward": 2.0, "loss": 0.5, "backward": 3.5, "send": 0.25, "receive": 1.0},
        **{"reduce": 0.25, "optimizer": 1.0, "agreement": 0.5},
    }
    assert next(iter(first["phases"])) == "forward", "in the order of a step"
    assert second["phases"]["save"] == 1.0
    assert first["work"] == [101, 107, 6.0]
    assert share["timeline"]["step"] == 7, "the one that does not save"
    assert share["memory"][1] == [101, 1001]
    assert share["products"] == {"seconds": 2.0, "flops": 96}


def test_the_work_of_a_device_is_what_its_kernels_do() -> None:
    plain = recording()
    kernels = [TimeSpan("forward", 103, 105), TimeSpan("forward", 104, 106), TimeSpan("backward", 107, 108.5)]
    with_device = Recording(steps=plain.steps, phases=plain.phases, memory=plain.memory, kernels=kernels)
    share = rank_summary(with_device)
    assert share["steps"][0]["work"] == [103, 108.5, 4.5]
    assert share["steps"][1]["work"] is None
    assert share["device_seconds"] == {"forward": 4.0, "backward": 1.5}


def test_a_union_counts_no_second_twice() -> None:
    assert union([TimeSpan("", 0, 2), TimeSpan("", 1, 1.5), TimeSpan("", 1, 3), TimeSpan("", 5, 6)]) == 4
    assert union([]) == 0


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (3, 1)])
def test_a_perfect_pipeline_has_the_ideal_bubble(stages: int, micro_batches: int) -> None:
    """1F1B with equal stages, forward 1 s and backward 2 s, sends for nothing."""
    shares = []
    for stage in range(stages):
        begin, work = 10.0 + stage, 3.0 * micro_batches  # of all the time from the first forward to the last backward
        end = 10.0 + 3.0 * (micro_batches + stages - 1) - 2.0 * stage
        idle = end - begin - work
        spans = chain(10.0, ("receiving", stage), ("forward", 1.0 * micro_batches), ("receiving", idle))
        spans += chain(spans[-1].end, ("backward", 2.0 * micro_batches), ("update", 1.0))
        assert spans[-2].end == pytest.approx(end)
        steps = [TimeSpan("1", 10.0, spans[-1].end)]
        share = rank_summary(Recording(steps=steps, phases=spans, memory=[0] * len(spans)))
        shares.append({"rank": stage, "stage": stage, "replica": 0, **share})
    bubble = combine(shares, {"tensor": 1, "pipeline": stages, "data": 1}, micro_batches)["bubble"]
    assert bubble["measured"] == pytest.approx(bubble["ideal"])
    assert bubble["ideal"] == pytest.approx((stages - 1) / (micro_batches + stages - 1))
    assert bubble["ranks"] == pytest.approx([bubble["ideal"]] * stages)


def test_ranks_together() -> None:
    shares = [
        {"rank": rank, "stage": 0, "replica": rank, **rank_summary(recording(*[("save", 1.0)] * rank))}
        for rank in (0, 1)
    ]
    summary = combine(shares, {"tensor": 1, "pipeline": 1, "data": 2}, 1)
    assert summary["steps"] == [7, 8]
    assert summary["step_seconds"] == pytest.approx((9 + 9 + 9 + 10) / 4)
    assert summary["bubble"] is None
    assert summary["phases"]["save"] == pytest.approx(
        {"seconds": 0.25, "share": 0.25 / 9.25, "least": 0.0, "most": 0.5, "device_seconds": 0.0}
    )
    assert sum(phase["seconds"] for phase in summary["phases"].values()) == pytest.approx(summary["step_seconds"])
    (mm,) = summary["operators"]
    assert (mm["calls"], mm["seconds"], mm["flops"]) == (2, 1.0, 48), "of one rank, in one step"
    assert "operators" not in summary["ranks"][0]
    lines = table(summary)
    assert len(lines) == len(summary["phases"])
    assert lines[0].split() == ["forward", "2000.00", "ms", "21.6%"]
