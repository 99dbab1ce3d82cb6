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
    """Lets a process that is started in the block ignore all of them for ever, while this one hears afterwards what
    comes in the meantime: a blocked signal stays pending, also where it is ignored.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
    before = listen(signal.SIG_IGN)
    try:
        yield
    finally:
        restore(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def current() -> dict[int, Any]:
    """The handlers as they are, for `restore`."""
    return {number: signal.getsignal(number) for number in NUMBERS}


def restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
