"""The signals by which a person or a system asks to save and end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

# a request, Ctrl-C, SLURM's warning, and a terminal that is gone
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
Handler = Callable[[int, Any], None]


def listen(handler: Handler | int) -> dict[int, Any]:
    """Install `handler` for all of them; the handlers before, for `restore`. What `nohup` ignores stays ignored."""
    heard = [number for number in NUMBERS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heard}


@contextlib.contextmanager
def kept_for_later() -> Iterator[None]:
    """Blocks all of them for a process that is started in the block, and for its children; this process gets afterwards
    what was sent to it in the meantime. Call it in the main thread.
    """
    received: list[int] = []  # by another thread: this one blocks them
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
    before = listen(lambda number, _: received.append(number))
    try:
        yield
    finally:
        restore(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in dict.fromkeys(received):
            signal.raise_signal(number)


def current() -> dict[int, Any]:
    """The handlers as they are, for `restore`."""
    return {number: signal.getsignal(number) for number in NUMBERS}


def restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
