"""Row 11: two pipeline stages on two processes with a thread each, beside what one such process makes possible.

The model has GPT-1's proportions, so that the head weighs as much as four blocks. Two stages that are balanced and
never wait reach p m / (m + p - 1) times the rate of one process (p stages, m micro-batches). What the machine itself
takes off when both cores work is measured apart: two such processes at once that know nothing of each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tools.bench.ranks import Ranks, started
from tools.bench.rows import Options, Ratio, Row, ratio, take_turns

APART = True  # torch is imported by other processes
STAGES, MICRO_BATCHES, ROWS = 2, 8, 4  # rows of a micro-batch
SIZE = {"layers": 12, "width": 384, "heads": 6, "context": 256}  # GPT-1's halves, and half its vocabulary
VOCABULARY = 20239
QUICK = {"layers": 4, "width": 64, "heads": 2, "context": 64}
IDEAL = STAGES * MICRO_BATCHES / (MICRO_BATCHES + STAGES - 1)
LOSS, NORM = 2e-3, 5e-2  # relative differences that bf16 leaves between layouts

OURS, STOCK, ONE = "pipeline, cut by FLOPs", "pipeline, cut by parameters (DeepSpeed)", "one process, one thread"
TWO, THREADS = "two processes apart", "one process, two threads"
TENSOR, DATA = "tensor parallel 2", "data parallel 2"
TRAINER, STOCK_TRAINER = "tools.bench.ranks:trainer", "tools.bench.pipeline:stock_trainer"


def stock_trainer(words: list[str], vocabulary: int) -> Callable[[int], dict[str, float]]:
    """The same engine, its layers cut as DeepSpeed's PipelineModule does by itself."""
    from deepspeed.pipe import PipelineModule

    from gpt1_ds.parallel import pipeline
    from tools.bench.ranks import trainer

    def cut(self: PipelineModule, method: str = "parameters") -> None:
        PipelineModule._partition_layers(self, "parameters")

    pipeline.BalancedPipeline._partition_layers = cut  # type: ignore[method-assign]
    return trainer(words, vocabulary)


def measure(options: Options) -> Row:
    vocabulary, rows = (2000, 2) if options.quick else (VOCABULARY, ROWS)
    size = QUICK if options.quick else SIZE
    tokens = rows * MICRO_BATCHES * size["context"]
    words = [f"model.{key}={value}" for key, value in size.items()]
    words += [f"train.global_batch={rows * MICRO_BATCHES}", f"train.micro_batch={rows}", "train.precision=bf16"]

    with contextlib.ExitStack() as stack:

        def ranks(extra: str = "", number: int = 2, threads: int = 1, target: str = TRAINER) -> Ranks:
            arguments = ([*words, *extra.split()], vocabulary)
            return stack.enter_context(started(target, arguments, number, threads))

        teams = {
            OURS: [ranks("parallel.pipeline=2")],
            STOCK: [ranks("parallel.pipeline=2", target=STOCK_TRAINER)],
            ONE: [ranks(number=1)],
            TENSOR: [ranks("parallel.tensor=2")],
            DATA: [ranks()],
            THREADS: [ranks(number=1, threads=2)],
            TWO: [ranks(number=1), ranks(number=1)],
        }
        steps: dict[str, list[tuple[float, float]]] = {name: [] for name in teams}

        def turn(name: str) -> Callable[[], float]:
            return lambda: len(teams[name]) * tokens / _step(teams[name], len(steps[name]), steps[name])

        series = take_turns({name: turn(name) for name in teams}, options.rounds)
    return Row(
        number=11,
        title="two pipeline stages, a thread each",
        unit="tokens/s",
        series=series,
        ratios=_ratios(series),
        configuration={**size, "vocabulary": vocabulary, "rows": rows, "micro_batches": MICRO_BATCHES},
        checks={"losses": _agree(steps)},
    )


def _step(team: list[Ranks], number: int, found: list[tuple[float, float]]) -> float:
    """One step of all processes of a team at once; the seconds of the slowest."""
    for ranks in team:
        ranks.tell(number)
    answers = [answer for ranks in team for answer in ranks.hear()]
    found.append((answers[-1]["loss"], answers[-1]["norm"]))
    return max(answer["seconds"] for answer in answers)


def _ratios(series: dict[str, list[float]]) -> list[Ratio]:
    def share(name: str, of: str, ideal: float = 1.0) -> list[float]:
        return [one / ideal for one in ratio(series, name, of)]

    return [
        Ratio("two stages / ideal of one process", share(OURS, ONE, IDEAL), 0.93),
        Ratio("cut by FLOPs / cut by parameters", share(OURS, STOCK), 1.15),
        Ratio("two stages / ideal of two processes at once", share(OURS, TWO, IDEAL / STAGES)),
        Ratio("two processes at once / twice one", share(TWO, ONE, STAGES)),
        *(Ratio(f"{name} / one process, two threads", share(name, THREADS)) for name in (OURS, TENSOR, DATA)),
    ]


def _agree(steps: dict[str, list[tuple[float, float]]]) -> list[float]:
    """The losses, which every layout must find alike."""
    expected = steps[THREADS]
    for name, found in steps.items():
        for (loss, norm), (right, right_norm) in zip(found, expected, strict=True):
            close = abs(loss / right - 1) < LOSS and abs(norm / right_norm - 1) < NORM
            assert close, f"{name} trains something else: loss {loss}, not {right}; norm {norm}, not {right_norm}"
    return [loss for loss, _ in expected]
