"""A contact asks a GPU these phases, the most valuable first; limits are seconds on an H100.

A phase imports its module when it runs: one that cannot be imported costs its own phases only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tools.gpu.record import Contact
from tools.gpu.runner import Phase

PARITY = {"families": 180, "graphs": 180, "compiled": 240, "options": 120, "tasks": 120}  # group: seconds
TESTS = {"gpu_training": 150, "gpu_promises": 400, "bench_cuda": 200}  # of tests/gpu/test_NAME.py: seconds


def _call(place: str, *arguments: Any) -> Callable[[Contact], None]:
    """`MODULE.FUNCTION` of tools/gpu, with arguments after the contact."""

    def run(contact: Contact) -> None:
        module, _, function = place.partition(".")
        getattr(importlib.import_module(f"tools.gpu.{module}"), function)(contact, *arguments)

    return run


def _family(name: str) -> tuple[Phase, Phase]:
    ours, theirs = _call("families.ours", name), _call("families.transformers", name)
    return Phase(name, 110, ours), Phase(f"{name}_transformers", 60, theirs)


def _parity(group: str) -> Phase:
    return Phase(f"parity_{group}", PARITY[group], _call("parity.parity", group))


PHASES = [
    Phase("environment", 40, _call("machine.environment"), decides=True),
    Phase("ceilings", 60, _call("machine.ceilings")),
    Phase("kernels", 100, _call("machine.kernels", False)),
    Phase("step", 110, _call("training.graphed")),
    Phase("transformers", 90, _call("training.transformers")),
    Phase("plain", 60, _call("training.plain", False)),
    Phase("losses", 90, _call("promises.losses")),
    Phase("kernels_compiled", 90, _call("machine.kernels", True), needs_cuda=True),
    Phase("plain_compiled", 150, _call("training.plain", True)),
    Phase("step_without_graphs", 60, _call("training.ours", "train.cuda_graphs=off")),
    Phase("doctor", 150, _call("promises.doctor"), needs_cuda=True),
    Phase("profile", 60, _call("training.profile")),
    Phase("resume", 150, _call("promises.resume")),
    _parity("families"),
    _parity("graphs"),
    Phase("finetuning", 90, _call("finetuning.finetuning")),
    Phase("sampling", 60, _call("sampling.ours")),
    Phase("sampling_transformers", 60, _call("sampling.transformers")),
    *_family("t5"),
    *map(_parity, ("compiled", "options", "tasks")),
    *_family("bert"),
    *_family("roberta"),
    Phase("two_ranks", 180, _call("ranks.two_ranks")),
    Phase("micro_batches", 90, _call("training.micro_batches")),
    Phase("fused", 90, _call("training.ours", "model.attention=fused"), needs_cuda=True),
    Phase("eager_graph", 60, _call("training.eager_graph")),
    *(Phase(f"tests_{name}", limit, _call("promises.tests", name), needs_cuda=True) for name, limit in TESTS.items()),
]
