"""How a phase times work: three series, each of which is in the results as soon as it is measured, with what the GPU
did meanwhile. A phase that is killed leaves those that it has made.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from tools.bench.rows import wait_for
from tools.gpu.record import Contact

SERIES = 3
SECONDS = 2.0  # of a series on a GPU, and of what warms it up: a short one would show a clock that has not settled
SMI_SECONDS = 5.0
ASKED = "clocks.sm,power.draw,temperature.gpu,clocks_throttle_reasons.active"
_SILENT: list[str] = []  # why nvidia-smi is not asked again


def seconds(contact: Contact) -> float:
    """Returns how long a series is at least; on a CPU it is the work done once."""
    return SECONDS if contact.device == "cuda" else 0.0


def rate(work: Callable[[], object], amount: float | None, device: str, least: float) -> float:
    """Returns `amount` of each `work`, or what `work` returns, per second over at least `least` seconds."""
    wait_for(device)
    began, done = time.perf_counter(), 0.0
    while True:
        found = work()
        done += found if amount is None else amount  # type: ignore[operator]
        if time.perf_counter() - began >= least:
            break
    wait_for(device)
    return done / (time.perf_counter() - began)


def three(contact: Contact, name: str, unit: str, work: Callable[[], object], amount: float | None) -> list[float]:
    """Returns the rates of three series, after one that warms up; each is written at once."""
    rate(work, amount, contact.device, seconds(contact))
    return [one(contact, name, unit, work, amount) for _ in range(SERIES)]


def one(contact: Contact, name: str, unit: str, work: Callable[[], object], amount: float | None) -> float:
    """Returns the rate of one series, which it has written with the state of the GPU."""
    found = rate(work, amount, contact.device, seconds(contact))
    contact.fact(f"{name}, one series", {unit: found, **condition(contact.device)})
    return found


def condition(device: str) -> dict[str, str]:
    """Returns what nvidia-smi says of the GPU's clock, power, temperature and what slows it; nothing where it does not
    answer.
    """
    if device != "cuda" or _SILENT:
        return {}
    arguments = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=SMI_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        _SILENT.append(str(error))
        return {}
    return dict(zip(ASKED.split(","), (part.strip() for part in done.stdout.split(",")), strict=False))
