"""`plan`: what a configuration will need and take, and the best layout for a number of ranks. Never loads torch, unless
it is to measure this machine.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.config import Config, load, world_problems
from gpt1_ds.plan import machine, report
from gpt1_ds.plan.cost import cost
from gpt1_ds.plan.dryrun import ASSUMED_VOCABULARY, describe, total_steps
from gpt1_ds.plan.machine import Machine
from gpt1_ds.plan.memory import memory
from gpt1_ds.plan.search import Found, search
from gpt1_ds.verbs import found_data

FORMAT = 1
RESERVED = {"cuda": 2.0, "cpu": 0.5}  # GiB of a rank for what is not planned: contexts, libraries, NCCL's buffers


def plan(options: argparse.Namespace) -> int:
    config = load(options.config, options.overrides)
    _check(options)
    if options.calibrate:
        _calibrate(options.machine)
        if not options.config and not options.overrides and not options.search and options.world is None:
            return 0
    found = machine.find(options.machine)
    vocab_size, data_tokens = found_data(config)
    default = found.ranks_per_node if options.search else config.parallel.tensor * config.parallel.pipeline
    world = options.world or default
    facts = _Facts(config, world, vocab_size, data_tokens, found, _limit(options.memory, found, world))
    return facts.search(options) if options.search else facts.plan(options.json)


class _Facts:
    """What is planned for."""

    def __init__(
        self, config: Config, world: int, vocab_size: int | None, tokens: int | None, here: Machine, limit: int
    ) -> None:
        self.config, self.world, self.machine, self.limit = config, world, here, limit
        self.vocab_size, self.data_tokens = vocab_size, tokens
        self.vocabulary = vocab_size or ASSUMED_VOCABULARY
        tokens_per_step = config.train.global_batch * config.model.context
        self.tokens = (total_steps(config, tokens_per_step, tokens) or 0) * tokens_per_step

    def plan(self, as_json: bool) -> int:
        config = self.config
        ConfigError.raise_all(world_problems(config, self.world))
        if config.model.kind != "gpt":
            if as_json:
                raise ConfigError(f"model.kind={config.model.kind}: only a gpt is planned with --json; leave it out")
            print("\n".join(describe(config, self.world, self.vocab_size, self.data_tokens)))
            return 0
        if as_json:
            print(json.dumps({**self._head(), **self._numbers(config)}))
        else:
            print("\n".join(describe(config, self.world, self.vocab_size, self.data_tokens)))
            self._print(config)
        return 0

    def search(self, options: argparse.Namespace) -> int:
        if self.config.model.kind != "gpt":
            raise ConfigError(f"model.kind={self.config.model.kind}: there is one layout only; leave --search out")
        found = search(self.config, self.world, self.vocabulary, self.machine, self.limit)
        if options.json:
            print(json.dumps({**self._head(), **self._ranking(found)}))
        else:
            print(report.machine_line(self.machine))
            print("\n".join(report.search_lines(found)))
        if not found.ranked:
            return 1
        best = found.ranked[0]
        if not options.json:
            print(f"the best, {best}:")
            self._print(best.config)
            print("use it: " + " ".join(best.words()))
            if self.machine.device == "cuda":
                print("ask SLURM for it: " + " ".join(report.request_words(self.world, self.machine)))
        if options.out:
            write_atomic(Path(options.out), report.layout_yaml(best, self.machine))
        return 0

    def _print(self, config: Config) -> None:
        costs = cost(config, self.world, self.vocabulary, self.machine)
        for line in report.memory_lines(self._memory(config), self.limit, self.world, self.machine):
            print(line)
        print(report.machine_line(self.machine))
        for line in report.cost_lines(costs, config, self.world, self.machine, self.tokens):
            print(line)

    def _memory(self, config: Config) -> list[Any]:
        return memory(config, self.world, self.vocabulary, self.machine.device)

    def _head(self) -> dict[str, Any]:
        here = self.machine
        return {
            "format": FORMAT,
            "world": self.world,
            "vocabulary": self.vocabulary,
            "tokens": self.tokens or None,
            "limit": self.limit,
            "machine": {"name": here.name, "source": here.source, "device": here.device, "measured": here.measured},
        }

    def _numbers(self, config: Config) -> dict[str, Any]:
        costs = cost(config, self.world, self.vocabulary, self.machine)
        return report.as_json(config, self._memory(config), costs, self.world)

    def _ranking(self, found: Found) -> dict[str, Any]:
        ranked = [
            report.as_json(one.config, [one.memory], one.cost, self.world) for one in found.ranked[: report.SHOWN]
        ]
        best = {**self._numbers(found.ranked[0].config), "words": found.ranked[0].words()} if found.ranked else None
        counts = {"legal": len(found.ranked), "too_large": len(found.too_large), "refused": found.refused}
        request = report.request_words(self.world, self.machine) if self.machine.device == "cuda" else []
        return {"best": best, "ranked": ranked, "losers": list(found.losers()), **counts, "slurm": request}


def _check(options: argparse.Namespace) -> None:
    if options.world is not None and options.world < 1:
        raise ConfigError(f"--world={options.world}: at least 1 rank is needed")
    if options.memory is not None and not (options.memory > 0 and math.isfinite(options.memory)):
        raise ConfigError(f"--memory={options.memory}: a rank needs more than 0 GiB")
    if options.out and not options.search:
        raise ConfigError(f"--out={options.out}: only a search has a best layout to write; add --search")


def _limit(gib: float | None, here: Machine, world: int) -> int:
    """Bytes that a rank may use: `gib`, else what the machine has less a reserve; ranks on processors share theirs."""
    if gib is None:
        sharing = min(world, here.ranks_per_node) if here.device == "cpu" else 1
        gib = max(0.1, here.memory_gib / sharing - RESERVED[here.device])
    return int(gib * 2**30)


def _calibrate(name: str | None) -> None:
    """Measure this machine and keep the result where it will be found."""
    if name in machine.PRESETS:
        raise ConfigError(f"--machine={name}: the name of a preset; give the file to write, or leave it out")
    from gpt1_ds.parallel import libraries

    libraries.load()
    from gpt1_ds.training.calibrate import calibrate

    path = Path(name) if name else machine.default_path()
    measured = calibrate()
    machine.write(measured, path)
    print(f"{path}: {measured.name}, {measured.source}")
    print(json.dumps(asdict(measured.node)), "between ranks")
