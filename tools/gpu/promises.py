"""Whether a GPU keeps the promises that a CPU keeps: the same losses, the same bits after a kill.

Also the self-proof and the tests that need a GPU, as people run them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from typing import Any

from tools.gpu import kit, reference
from tools.gpu.record import LOG, Contact
from tools.gpu.runner import program

_RUN = [
    *("train.steps=120", "train.global_batch=16", "train.micro_batch=8", "train.log_every=1", "train.eval_every=60"),
    *("train.eval_batches=2", "train.deterministic=true", "checkpoint.every=40", "schedule.warmup_steps=10"),
    *("model.layers=4", "model.width=256", "model.heads=4", "model.context=256", "model.vocab_size=2000"),
]
_TINY_RUN = ["train.steps=12", "checkpoint.every=4", "model.layers=2", "model.width=64", "model.context=32"]


SLOW = 75.0  # seconds, after which the log says where a run is


def losses(contact: Contact) -> None:
    """Compares the losses of twenty steps with dropout with the CPU's, which were packed or are computed here."""
    from tools.bench.ours import TINY
    from tools.gpu.training import graph_facts, graphs

    size, steps = (TINY, 3) if contact.tiny else ([], reference.STEPS)
    wanted = reference.compute(size, steps) if contact.device == "cpu" else _reference(contact)
    for case, (_, limit) in reference.CASES.items():
        found, engine = reference.losses(contact.device, case, [*size, *graphs()], steps)
        apart = max(abs(a - b) for a, b in zip(found, wanted[case], strict=True))
        contact.check(f"losses, {case}: from the CPU's", apart <= limit, apart, limit)
        contact.fact(f"losses, {case}", {"here": found, "cpu": wanted[case], "graphs": graph_facts(engine)})


def _reference(contact: Contact) -> dict[str, list[float]]:
    packed, made = kit.KIT / kit.REFERENCE, contact.work / kit.REFERENCE
    found = reference.read(packed) or reference.read(made)
    if found is None:
        subprocess.run([sys.executable, reference.__file__, str(made)], check=True)
        found = reference.read(made)
    assert found is not None, "it was computed"
    return found


def resume(contact: Contact) -> None:
    """Kills a run in its middle, starts it again and compares its bits with those of one that was left alone."""
    from gpt1_ds.common.rundir import RunDir
    from tools import runs
    from tools.families import make_data
    from tools.gpu.parity import kept_graphs
    from tools.gpu.training import graphs

    data, place = make_data(contact.work / "text-causal"), contact.work / "resume"
    shutil.rmtree(place, ignore_errors=True)
    arguments = ["pretrain", "-c", "pretrain/gpt1_117m"]
    arguments += [*_RUN, *(_TINY_RUN if contact.tiny else []), f"data.path={data}", f"train.device={contact.device}"]
    arguments += [f"run.dir={place}", *graphs()]
    whole, killed = RunDir(place / "whole"), RunDir(place / "killed")
    _finish(program([*arguments, "run.name=whole"], contact.work, SLOW))
    steps = max(runs.losses(whole))
    victim, half = program([*arguments, "run.name=killed"], contact.work, SLOW), steps // 2 + 1
    while runs.last_step(killed) < half and victim.is_alive():
        time.sleep(0.005)
    victim.kill()
    victim.join()
    last = runs.last_step(killed)
    contact.check("the kill came before the end: the last step", last < steps, last, steps - 1)
    _finish(program([*arguments, "run.name=killed"], contact.work, SLOW))
    for run in (whole, killed):
        kept_graphs(contact, run.path.name, run.path)
    readers: dict[str, Callable[[RunDir], dict[Any, Any]]] = {"losses": runs.losses, "weights": runs.weights}
    for what, read in readers.items():
        wanted, found = read(whole), read(killed)
        unlike = [key for key in wanted if wanted[key] != found.get(key)]
        named = ", ".join(map(str, unlike[:5]))
        contact.check(f"killed and resumed: {what} that differ", not unlike, len(unlike), 0, named)
    shutil.rmtree(place, ignore_errors=True)


def _finish(process: ForkProcess) -> None:
    process.join()
    assert process.exitcode == 0, f"a run ended with {process.exitcode}: see the log"


def doctor(contact: Contact) -> None:
    """Runs the self-proof as users do; its file is written beside the results."""
    _command(contact, "-P", "-m", "gpt1_ds", "doctor", "--gpu", "--out", str(contact.out / "gpu-check.json"))


def tests(contact: Contact, name: str) -> None:
    """Runs a file of tests/gpu; the log names every test."""
    arguments = ("-v", "-p", "no:cacheprovider", "-p", "tools.gpu.failures", "--durations=10")
    _command(contact, "-m", "pytest", *arguments, f"tests/gpu/test_{name}.py")


def _command(contact: Contact, *arguments: str) -> None:
    """Runs a program of Python, whose output goes to the log; records its exit code and its last lines."""
    began, log = time.time(), contact.out / LOG
    start = log.stat().st_size
    done = subprocess.run([sys.executable, *arguments], cwd=kit.ROOT, stderr=subprocess.STDOUT)
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    last = "\n".join(lines[-25:])
    contact.check(" ".join(arguments[1:]), done.returncode == 0, done.returncode, 0, last)
    contact.fact("took, s", round(time.time() - began, 1))
