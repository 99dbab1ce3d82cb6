"""The signals by which a person or a system asks to save and end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

# a request, Ctrl-C, SLURM's warning, and a terminal that is gone
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
Handler = Callable[[int, Any], None]
_ERRORS = [2]  # descriptors of standard error, the one to write to last
_UNDOS: list[tuple[int, Callable[[], None]]] = []  # (process, what `terminate` calls in it)


def listen(handler: Handler | int) -> dict[int, Any]:
    """Installs `handler` for all NUMBERS and returns the handlers before, for `restore`. A SIGHUP that `nohup` ignores
    stays ignored.
    """
    handled = [number for number in NUMBERS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in handled}


def say_termination() -> None:
    """A SIGTERM, SIGUSR1 or SIGHUP that ends this program is said from now on, where standard error leads now:
    libraries load without.
    """
    ending = [number for number in NUMBERS if signal.getsignal(number) == signal.SIG_DFL]  # SIGINT raises an exception
    if not ending:
        return
    with contextlib.suppress(OSError):  # it is closed
        _ERRORS.append(os.dup(2))
    for number in ending:
        signal.signal(number, terminate)


@contextlib.contextmanager
def undone(undo: Callable[[], None]) -> Iterator[None]:
    """Calls `undo` where a signal ends this program in the block, which then cannot clean up itself."""
    entry = (os.getpid(), undo)
    _UNDOS.append(entry)
    try:
        yield
    finally:
        _UNDOS.remove(entry)


def terminate(number: int, _: object) -> None:
    """The handler of a program that has nothing to save: says that it ends, and ends by the signal as without it."""
    with contextlib.suppress(OSError):  # nobody reads it
        os.write(_ERRORS[-1], b"gpt1-ds: terminated\n")
    for process, undo in _UNDOS:
        if process == os.getpid():  # not in one that a library has forked
            with contextlib.suppress(OSError):
                undo()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


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
    """Returns the handlers as they are, for `restore`."""
    return {number: signal.getsignal(number) for number in NUMBERS}


def restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
