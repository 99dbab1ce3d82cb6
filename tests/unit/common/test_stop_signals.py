"""A request to stop is received, whenever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gpt1_ds.common import stop_signals


def test_what_comes_while_another_process_is_started_is_received_afterwards() -> None:
    received: list[int] = []
    before = stop_signals.listen(lambda number, _: received.append(number))
    try:
        with stop_signals.kept_for_later():
            for number in stop_signals.NUMBERS:
                os.kill(os.getpid(), number)
            code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM); print('alive')"
            assert subprocess.check_output([sys.executable, "-c", code], text=True) == "alive\n"
            assert received == []
        assert sorted(received) == sorted(stop_signals.NUMBERS)
    finally:
        stop_signals.restore(before)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {*stop_signals.NUMBERS}


def test_an_interrupt_is_raised_when_the_block_ends() -> None:
    with pytest.raises(KeyboardInterrupt), stop_signals.kept_for_later():
        os.kill(os.getpid(), signal.SIGINT)
