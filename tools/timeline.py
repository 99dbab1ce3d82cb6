"""When the jobs of a sandbox ran and what was done to them, followed from a thread; and a picture of it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from tools.cluster import Cluster

PAUSE = 0.5  # seconds between two looks at the queue
SYMBOLS = ("v", "^", "s", "X", "D", "P")
COLOURS = ("C0", "C2", "C4", "C6", "C8", "C9")  # of the tries of a row, in turn


@dataclass
class Span:
    """Seconds since the beginning in which a job ran without a break."""

    row: str
    job: str
    begin: float
    end: float

    def line(self, **more: Any) -> dict[str, Any]:
        return {**more, "row": self.row, "job": self.job, "begin": round(self.begin, 1), "end": round(self.end, 1)}


@dataclass
class Timeline:
    """`row` says in which row a job is drawn, from its number and its name."""

    cluster: Cluster
    row: Callable[[str, str], str]
    spans: list[Span] = field(default_factory=list)
    marks: list[tuple[str, float, str]] = field(default_factory=list)  # (row, seconds, what was done)
    began: float = field(default_factory=time.monotonic)

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def mark(self, row: str, what: str, at: float | None = None) -> None:
        """Notes what is done to the job of a row, now or `at` seconds."""
        self.marks.append((row, self.now if at is None else at, what))

    @contextlib.contextmanager
    def followed(self) -> Iterator[Timeline]:
        """Looks at the queue again and again within the block."""
        over = threading.Event()
        thread = threading.Thread(target=self._follow, args=(over,))
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()

    def _follow(self, over: threading.Event) -> None:
        running: dict[str, Span] = {}
        while not over.wait(PAUSE):
            queue = self.cluster.call("squeue", "--noheader", "--states=RUNNING", "--format=%i|%j", check=False)
            found = dict(line.split("|", 1) for line in queue.splitlines() if "|" in line)
            running = {job: span for job, span in running.items() if job in found}
            for job, name in found.items():
                if job not in running:
                    running[job] = Span(self.row(job, name), job, self.now, self.now)
                    self.spans.append(running[job])
                running[job].end = self.now

    def draw(self, axes: Axes, rows: Sequence[str], ways: Sequence[str]) -> None:
        """Draws a row for each of `rows`, the first on top."""
        made = dict.fromkeys(rows, 0)
        for span in self.spans:
            colour = COLOURS[made[span.row] % len(COLOURS)]
            axes.barh(rows.index(span.row), span.end - span.begin, left=span.begin, height=0.7, color=colour)
            made[span.row] += 1
        for row, seconds, what in self.marks:
            axes.plot(seconds, rows.index(row), SYMBOLS[ways.index(what)], color="black", markersize=5, zorder=3)
        axes.set(yticks=range(len(rows)), yticklabels=rows, ylim=(len(rows) - 0.4, -0.6))
        axes.grid(alpha=0.3, axis="x")
        axes.set_axisbelow(True)


def legend(ways: Sequence[str]) -> list[Line2D]:
    """Returns what a figure's legend shows: a symbol for each way."""
    return [
        Line2D([], [], marker=SYMBOLS[number], color="black", linestyle="", label=way)
        for number, way in enumerate(ways)
    ]
