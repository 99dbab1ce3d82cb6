"""Speed of the logged interval: training time only, evaluation and saves taken out."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass

# bf16 dense peak in TFLOP/s by a part of the device's name (vendors' data sheets)
PEAK_TFLOPS = {"H200": 989.4, "H100": 989.4, "H800": 989.4, "A100": 312.0, "A800": 312.0, "L40S": 362.0, "V100": 125.0}


@dataclass(frozen=True)
class Speed:
    step_seconds: float
    data_wait_seconds: float
    tokens_per_second: float


class Stopwatch:
    """Times steps between two `lap`s; what happens inside `pause` does not count."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._steps, self._tokens, self._paused, self._waited = 0, 0, 0.0, 0.0

    def step(self, tokens: int) -> None:
        self._steps += 1
        self._tokens += tokens

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - began

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._waited += time.perf_counter() - began

    def lap(self) -> Speed:
        """The interval's averages per step; starts the next interval."""
        seconds = max(time.perf_counter() - self._start - self._paused, 1e-9)
        steps = max(self._steps, 1)
        speed = Speed(seconds / steps, self._waited / steps, self._tokens / seconds)
        self.__init__()  # type: ignore[misc]
        return speed


def peak_tflops(device_name: str) -> float | None:
    """bf16 peak of a GPU by its name; None for a device whose peak is not listed."""
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in device_name), None)


def peak_process_gib() -> float:
    """Largest resident memory of this process so far, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
