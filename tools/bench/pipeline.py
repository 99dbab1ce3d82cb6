"""Row 11: GPT-1 as two pipeline stages on two processes of a thread each, beside what one such process makes possible.

Two stages that are balanced and never wait reach p m / (m + p - 1) times the rate of one process (p stages, m
micro-batches). What the machine itself takes off when both cores work is measured apart: two such processes at once
that know nothing of each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tools.bench.ranks import Ranks, started
from tools.bench.rows import Options, Ratio, Row, Series, ratio, take_turns

APART = True  # torch is imported by other processes
STAGES, MICRO_BATCHES = 2, 8  # micro-batches of one sequence
SIZE = {"layers": 12, "width": 768, "heads": 12, "context": 512}
VOCABULARY = 40478
QUICK = {"layers": 4, "width": 64, "heads": 2, "context": 64}
IDEAL = STAGES * MICRO_BATCHES / (MICRO_BATCHES + STAGES - 1)
LOSS, NORM = 2e-3, 5e-2  # relative differences that bf16 leaves between layouts

OURS, STOCK, ONE = "pipeline, cut by FLOPs", "pipeline, cut by parameters (DeepSpeed)", "one process, one thread"
TWO, THREADS = "two processes apart", "one process, two threads"
REFERENCE = "one process, two threads (beside TP2 and DP2)"
TENSOR, DATA = "tensor parallel 2", "data parallel 2"
TRAINER, STOCK_TRAINER = "tools.bench.ranks:trainer", "tools.bench.pipeline:stock_trainer"


@dataclass
class Team:
    """The processes of one engine, and (loss, norm) of its steps so far."""

    ranks: Ranks
    steps: list[tuple[float, float]] = field(default_factory=list)

    def begin(self, threads: int) -> None:
        self.ranks.tell(len(self.steps), threads)

    def end(self) -> float:
        """Seconds of the step."""
        answers = self.ranks.hear()
        self.steps.append((answers[-1]["loss"], answers[-1]["norm"]))
        return float(max(answer["seconds"] for answer in answers))


def stock_trainer(arguments: list[str], vocabulary: int) -> Callable[..., dict[str, float]]:
    """The same engine, its layers cut as DeepSpeed's PipelineModule does by itself."""
    from deepspeed.pipe import PipelineModule

    from gpt1_ds.engine import pipelined
    from tools.bench.ranks import trainer

    def cut(self: PipelineModule, method: str = "parameters") -> None:
        PipelineModule._partition_layers(self, "parameters")

    pipelined.BalancedPipeline._partition_layers = cut  # type: ignore[method-assign]
    return trainer(arguments, vocabulary)


def measure(options: Options) -> Row:
    vocabulary, size = (2000, QUICK) if options.quick else (VOCABULARY, SIZE)
    arguments = [f"model.{key}={value}" for key, value in size.items()]
    arguments += [f"train.global_batch={MICRO_BATCHES}", "train.micro_batch=1", "train.precision=bf16"]
    series: Series = {}
    for names in (TENSOR, DATA, REFERENCE), (OURS, STOCK, ONE, TWO, THREADS):  # all at once need more memory
        found, losses = _compare(names, arguments, vocabulary, MICRO_BATCHES * size["context"], options.rounds)
        series |= found
    return Row(
        number=11,
        title="GPT-1 as two pipeline stages, a thread each",
        unit="tokens/s",
        series=series,
        ratios=_ratios(series),
        configuration={**size, "vocabulary": vocabulary, "micro_batches": MICRO_BATCHES},
        checks={"losses": losses},
    )


def _compare(
    names: Sequence[str], arguments: list[str], vocabulary: int, tokens: int, rounds: int
) -> tuple[Series, list[float]]:
    """Tokens/s of contenders in turns, and the losses, on which all agree."""
    with contextlib.ExitStack() as stack:

        def team(extra: str = "", ranks: int = 2, target: str = TRAINER) -> Team:
            return Team(stack.enter_context(started(target, ([*arguments, *extra.split()], vocabulary), ranks)))

        one = team(ranks=1)
        build = {
            OURS: lambda: [team("parallel.pipeline=2")],
            STOCK: lambda: [team("parallel.pipeline=2", target=STOCK_TRAINER)],
            ONE: lambda: [one],
            TENSOR: lambda: [team("parallel.tensor=2")],
            DATA: lambda: [team()],
            TWO: lambda: [one, team(ranks=1)],
        }
        teams = {name: build.get(name, build[ONE])() for name in names}

        def turn(name: str) -> Callable[[], float]:
            threads = 2 if name in (THREADS, REFERENCE) else 1
            return lambda: len(teams[name]) * tokens / _step(teams[name], threads)

        series = take_turns({name: turn(name) for name in names}, rounds)
        _check(one, teams)
    return series, [loss for loss, _ in teams[names[0]][0].steps]


def _step(teams: list[Team], threads: int) -> float:
    """One step of all teams at once; the seconds of the slowest."""
    for team in teams:
        team.begin(threads)
    return max([team.end() for team in teams])


def _ratios(series: dict[str, list[float]]) -> list[Ratio]:
    def share(name: str, of: str, ideal: float = 1.0) -> list[float]:
        return [one / ideal for one in ratio(series, name, of)]

    return [
        Ratio("two stages / ideal of one process", share(OURS, ONE, IDEAL), 0.93),
        Ratio("cut by FLOPs / cut by parameters", share(OURS, STOCK), 1.15),
        Ratio("two stages / ideal of two processes at once", share(OURS, TWO, IDEAL / STAGES)),
        Ratio("two processes at once / twice one", share(TWO, ONE, STAGES)),
        Ratio(f"{OURS} / {THREADS}", share(OURS, THREADS)),
        *(Ratio(f"{name} / {REFERENCE}", share(name, REFERENCE)) for name in (TENSOR, DATA)),
    ]


def _check(one: Team, teams: dict[str, list[Team]]) -> None:
    """Every layout finds the losses of one process, in as many steps as it made."""
    others = [(name, team) for name, members in teams.items() for team in members if team is not one]
    for name, team in others:
        for (loss, norm), (right, right_norm) in zip(team.steps, one.steps, strict=False):
            close = abs(loss / right - 1) < LOSS and abs(norm / right_norm - 1) < NORM
            assert close, f"{name} trains something else: loss {loss}, not {right}; norm {norm}, not {right_norm}"
