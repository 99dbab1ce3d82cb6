"""How far `data build` is: a bar on a terminal, nothing in a log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from gpt1_ds.common import log
from gpt1_ds.common.units import count
from gpt1_ds.data.build import Progress


@contextlib.contextmanager
def shown() -> Iterator[Callable[[Progress], None] | None]:
    """A callback for `build`, drawing a bar while the block runs; None where nobody watches."""
    if not log.is_terminal():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")

        def update(progress: Progress) -> None:
            tokens = f"{count(progress.tokens)} tokens"
            bar.update(task, completed=progress.bytes_done, total=progress.bytes_total, description=tokens)

        yield update
