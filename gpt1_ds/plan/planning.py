"""What a configuration will need and take, and the best layout for a number of ranks. `train.micro_batch=auto` means as
many sequences at a time as a rank has memory for.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.config import Config, world_problems
from gpt1_ds.config.sections import AUTO
from gpt1_ds.plan import report
from gpt1_ds.plan.cost import Cost, cost
from gpt1_ds.plan.machine import Machine
from gpt1_ds.plan.memory import RankMemory, memory, peak
from gpt1_ds.plan.report import ASSUMED_VOCABULARY, describe, total_steps, total_tokens
from gpt1_ds.plan.search import Ranking, divisors, search

FORMAT = 1
RESERVED = {"cuda": 2.0, "cpu": 0.5}  # GiB of a rank for what is not planned: contexts, libraries, NCCL's buffers


def usable_bytes(gib: float | None, machine: Machine, world: int) -> int:
    """Returns the bytes that a rank may use: `gib`, else what the machine has less a reserve; ranks on CPUs divide the
    memory.
    """
    if gib is None:
        ranks = min(world, machine.ranks_per_node) if machine.device == "cpu" else 1
        gib = max(0.1, machine.memory_gib / ranks - RESERVED[machine.device])
    return int(gib * 2**30)


class Planning:
    """A configuration on `world` ranks of a machine, `limit` usable bytes each. Every method prints its answer."""

    def __init__(
        self, config: Config, world: int, vocab_size: int | None, tokens: int | None, machine: Machine, limit: int
    ) -> None:
        config = with_micro_batch(config, world, machine.device, limit)
        self.config, self.world, self.machine, self.limit = config, world, machine, limit
        self.vocab_size, self.data_tokens = vocab_size, tokens
        self.vocabulary = vocab_size or ASSUMED_VOCABULARY
        self.steps, self.tokens = total_steps(config, tokens) or 0, total_tokens(config, tokens) or 0

    def plan(self, as_json: bool) -> int:
        """Prints the plan of the configuration as it is and returns the exit code. Raises ConfigError where it cannot
        run on these ranks.
        """
        config, planned = self.config, self.config.model.kind != "lstm"
        ConfigError.raise_all(world_problems(config, self.world))
        if as_json and not planned:
            raise ConfigError(f"model.kind={config.model.kind} is not planned with --json; leave it out")
        if as_json:
            print(json.dumps({**self._head(), **self._numbers(config)}))
            return 0
        if planned:
            print(report.machine_line(self.machine))
        print(*describe(config, self.world, self.vocab_size, self.data_tokens), sep="\n")
        if planned:
            self._print(config)
        return 0

    def search(self, as_json: bool, out: str | None) -> int:
        """Prints the best layouts, writes the best one to `out`, and returns the exit code: 1 where no layout fits."""
        if self.config.model.kind == "lstm":
            raise ConfigError(f"model.kind={self.config.model.kind}: there is one layout only; leave --search out")
        ranking = search(self.config, self.world, self.vocabulary, self.machine, self.limit)
        if as_json:
            print(json.dumps({**self._head(), **self._as_json(ranking)}))
        else:
            print(report.machine_line(self.machine))
            print("\n".join(report.search_lines(ranking)))
        if not ranking.ranked:
            return 1
        best = ranking.ranked[0]
        if not as_json:
            print(f"the best, {best}:")
            self._print(best.config)
            started = [f"--nproc {self.world}"] if self.machine.device == "cpu" else []
            print("use it: " + " ".join([*best.overrides(), *started]))
            if self.machine.device == "cuda":
                print("ask SLURM for it: " + " ".join(report.request_overrides(self.world, self.machine)))
        if out:
            write_atomic(Path(out), report.layout_yaml(best, self.machine))
        return 0

    def _print(self, config: Config) -> None:
        costs, ranks = cost(config, self.world, self.vocabulary, self.machine), self._memory(config)
        print(*report.memory_lines(ranks, self.limit, self.world, self.machine), sep="\n")
        seconds = self._seconds(config, costs)
        print(*report.cost_lines(costs, config, self.world, self.machine, self.tokens, seconds), sep="\n")
        if costs.graphs:
            without = replace(config, train=replace(config.train, cuda_graphs="off"))
            for line in report.graphs_lines(costs, cost(without, self.world, self.vocabulary, self.machine)):
                print(line)

    def _seconds(self, config: Config, full: Cost) -> float:
        """Returns the seconds of the whole run. A small step costs more per sequence; between the first step and a full
        one the time is linear in the sequences.
        """
        train = config.train
        if train.smallest_batch == train.global_batch:
            return self.tokens / full.tokens_per_second
        small = replace(train, global_batch=train.smallest_batch, batch_warmup=None, batch_warmup_tokens=None)
        first = cost(replace(config, train=small), self.world, self.vocabulary, self.machine)
        per_sequence = (full.step - first.step) / (train.global_batch - train.smallest_batch)
        sequences = self.tokens / config.row.fed
        return self.steps * (full.step - per_sequence * train.global_batch) + sequences * per_sequence

    def _memory(self, config: Config) -> list[RankMemory]:
        return memory(config, self.world, self.vocabulary, self.machine.device)

    def _head(self) -> dict[str, Any]:
        machine = self.machine
        return {
            "format": FORMAT,
            "world": self.world,
            "vocabulary": self.vocabulary,
            "tokens": self.tokens or None,
            "limit": self.limit,
            "machine": {key: getattr(machine, key) for key in ("name", "source", "device", "measured")},
        }

    def _numbers(self, config: Config) -> dict[str, Any]:
        costs = cost(config, self.world, self.vocabulary, self.machine)
        return report.as_json(config, self._memory(config), costs, self.world)

    def _as_json(self, ranking: Ranking) -> dict[str, Any]:
        best = ranking.ranked[0] if ranking.ranked else None
        return {
            "best": None if best is None else {**self._numbers(best.config), "words": best.overrides()},
            "ranked": [
                report.as_json(layout.config, [layout.memory], layout.cost, self.world)
                for layout in ranking.ranked[: report.SHOWN]
            ],
            "losers": list(ranking.losers()),
            "legal": len(ranking.ranked),
            "too_large": len(ranking.too_large),
            "refused": ranking.refused,
            "slurm": report.request_overrides(self.world, self.machine) if self.machine.device == "cuda" else [],
        }


MOST = {"cuda": 64, "cpu": 8}  # sequences; more of them make no step faster
IN_FLIGHT = 4  # micro-batches of a step for each pipeline stage, so that its ranks seldom wait


def with_micro_batch(config: Config, world: int, device: str, limit: int) -> Config:
    """Returns `config` for `world` ranks, each of which may use `limit` bytes of a `device`, "cuda" or "cpu". A number
    that is given stays, and so does what no micro-batch can repair: validation names it. Examples that are compared
    with one another (task.group) share a micro-batch.
    """
    if config.train.micro_batch != AUTO:
        return config
    data_ranks = max(1, world // (config.parallel.tensor * config.parallel.pipeline))
    rows = max(1, config.train.smallest_batch // data_ranks)  # of a data rank, for the smallest step
    stages = config.parallel.pipeline
    most = min(MOST[device], rows if stages == 1 else max(1, rows // (IN_FLIGHT * stages)))
    group = _group(config)
    sizes = [group * size for size in divisors(max(1, rows // group)) if group * size <= max(most, group)]
    vocabulary = config.model.vocab_size or ASSUMED_VOCABULARY
    for size in reversed(sizes):
        sized = replace(config, train=replace(config.train, micro_batch=size))
        if size == group or config.model.kind == "lstm" or peak(sized, world, vocabulary, device).peak <= limit:
            break
    return sized


def _group(config: Config) -> int:
    """Returns the number of examples that must be in one micro-batch."""
    task = config.task
    return task.group if task is not None and task.makes_vectors and task.loss == "ranking" else 1
