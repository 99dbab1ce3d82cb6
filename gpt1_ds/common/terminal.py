"""What rich draws on a terminal: a progress bar (gpt1_ds/common/log.py is what the program uses), and Markdown."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from datetime import timedelta
from typing import IO

from rich.console import Console, ConsoleDimensions
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

READABLE = 100  # columns of a text
REFRESHES = 4  # a second
ECHO = 3  # columns that stay free, so that the ^C of a terminal does not move the bar to a new line


class Bar:
    """Drawn from `__enter__` to `stop`; `print` puts a line above it. All three go through one console."""

    def __init__(self, stream: IO[str], total: float | None, done: float, unit: Callable[[float], str]) -> None:
        self._console = _Console(file=stream, force_terminal=True)
        columns = (_Amount(unit), BarColumn(None), TextColumn("{task.description}", markup=False), _Times())
        self._progress = Progress(
            *columns,
            console=self._console,
            transient=True,
            refresh_per_second=REFRESHES,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", completed=done, total=total)  # type: ignore[arg-type]

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Leaves no trace of it."""
        self._progress.stop()

    def show(self, done: float | None = None, words: str | None = None, total: float | None = None) -> None:
        self._progress.update(self._task, completed=done, description=words, total=total)

    def print(self, line: str) -> None:
        self._console.out(line, highlight=False)


class _Console(Console):
    """Belongs to the terminal that it writes to, whatever the standard streams are. It never hides the cursor: a rank
    that is killed could not show it again.
    """

    @property  # type: ignore[misc]  # nobody sets it
    def size(self) -> ConsoleDimensions:
        with contextlib.suppress(OSError):
            columns, lines = os.get_terminal_size(self.file.fileno())
            return ConsoleDimensions((columns or 80) - ECHO, lines or 25)  # a new pseudo-terminal says 0
        return ConsoleDimensions(80 - ECHO, 25)

    def show_cursor(self, show: bool = True) -> bool:
        return False


class _Amount(ProgressColumn):
    """Shows how much of the whole is done."""

    def __init__(self, unit: Callable[[float], str]) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text(self._unit(task.completed) if task.completed else "", no_wrap=True)
        return Text(f"{self._unit(task.completed)}/{self._unit(task.total)}", no_wrap=True)


class _Times(ProgressColumn):
    """Passed < left."""

    def render(self, task: Task) -> Text:
        passed = timedelta(seconds=int(task.elapsed or 0))
        left = task.time_remaining
        return Text(f"{passed}" if left is None else f"{passed}<{timedelta(seconds=int(left))}", no_wrap=True)


def rendered(markdown: str) -> str:
    """Returns markdown as the terminal of standard output shows it, in lines that are not too long to read."""
    from rich.markdown import Markdown  # a bar does not wait for it

    console = Console()
    console.width = min(console.width, READABLE)
    with console.capture() as capture:
        console.print(Markdown(markdown, hyperlinks=False))
    return capture.get()
