"""A request to stop is received, whenever it comes and whichever thread the system gives it to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from gpt1_ds.common import stop_signals

STAYS = "import os, signal; os.kill(os.getpid(), signal.SIGTERM); print('alive')"


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Python's own, also where these tests run in the background, with signals that their shell ignores."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in stop_signals.NUMBERS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    stop_signals.restore(before)


@pytest.mark.parametrize("threads", [0, 1])
def test_what_comes_while_another_process_is_started_is_received_afterwards(threads: int) -> None:
    received: list[int] = []
    done = threading.Event()
    others = [threading.Thread(target=done.wait, daemon=True) for _ in range(threads)]
    before = stop_signals.listen(lambda number, _: received.append(number))
    try:
        for thread in others:
            thread.start()
        with stop_signals.kept_for_later():
            for number in stop_signals.NUMBERS:
                os.kill(os.getpid(), number)
            assert subprocess.check_output([sys.executable, "-c", STAYS], text=True) == "alive\n"
            assert received == []
        assert sorted(received) == sorted(stop_signals.NUMBERS)
    finally:
        done.set()
        stop_signals.restore(before)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {*stop_signals.NUMBERS}


def _interrupted(steps: list[str]) -> None:
    with stop_signals.kept_for_later():
        signal.raise_signal(signal.SIGINT)  # to this thread: another one might handle it after the block
        steps.append("kept")
    steps.append("after")


def test_an_interrupt_is_raised_when_the_block_ends() -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        _interrupted(steps)
    assert steps == ["kept"]
