"""How far long work is: one bar below all lines of a terminal, nothing in a pipe or a log file."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from gpt1_ds.common import log


class Show(Protocol):
    """Says how much is done, in a few `words`, and of how much; what is left out stays as it is."""

    def __call__(self, done: float | None = None, words: str | None = None, total: float | None = None) -> None: ...


def show_nothing(done: float | None = None, words: str | None = None, total: float | None = None) -> None:
    """Shows nothing, where nobody watches."""


@contextlib.contextmanager
def bar(
    total: float | None = None, done: float = 0, unit: Callable[[float], str] = "{:.0f}".format, watched: bool = True
) -> Iterator[Show]:
    """Draw a bar while the block runs, where somebody watches, and yield what moves it.

    It is drawn again several times a second by a thread, so that its clock also moves while the work does not. What
    the program says meanwhile appears above it. `unit` writes an amount; without a `total` nobody knows the end.
    `watched=False` is for work whose output on the terminal shows how far it is.
    """
    if not (watched and log.is_terminal()):
        yield show_nothing
        return
    from gpt1_ds.common.terminal import Bar  # loads rich

    with contextlib.ExitStack() as stack:
        drawn = stack.enter_context(Bar(log.terminal(), total, done, unit))
        stack.enter_context(log.above(drawn.print))
        stack.enter_context(_removed_at_termination(drawn.stop))
        yield drawn.show


@contextlib.contextmanager
def _removed_at_termination(remove: Callable[[], None]) -> Iterator[None]:
    """Where SIGTERM would end this process at once, it calls `remove` before."""

    def end(number: int, _: Any) -> None:
        remove()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
