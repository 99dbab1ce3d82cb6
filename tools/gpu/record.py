"""What a contact finds: results.jsonl, a JSON object a line, each written at once. No library is needed to write it.

Every line has `phase`, `seconds` since the contact began, and `kind`:

    start     format, host, date, device (cuda or cpu), tiny, budget; code, argv, utc, variables
    fact      name, value
    series    name, unit, values: a figure for each of three series; and what else was seen meanwhile
    check     name, ok, value, limit, note (gpt1_ds/diagnostics/report.py)
    skipped   reason
    failed    error, trace
    end       outcome: done, failed, timed out after 60 s, killed by SIGKILL
"""

from __future__ import annotations

import json
import math
import sys
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

FORMAT = 1
RESULTS, LOG = "results.jsonl", "log.txt"  # in the output folder
LONGEST, LONGEST_TRACE = 4000, 20_000  # letters of a string in a line, and of a traceback


@dataclass(frozen=True)
class Contact:
    """What a phase is given. `work` is a private folder that outlives the contact; `began` is seconds of the clock."""

    out: Path
    work: Path
    device: str  # cuda or cpu
    tiny: bool = False
    began: float = field(default_factory=time.time)
    phase: str = "contact"
    console: IO[str] = field(default_factory=lambda: sys.stdout)

    def of(self, phase: str, console: IO[str] | None = None) -> Contact:
        """The same contact for another phase."""
        return replace(self, phase=phase, console=console or self.console)

    def write(self, kind: str, **facts: Any) -> None:
        """Add a line to the results, and show it."""
        line = {"phase": self.phase, "seconds": round(time.time() - self.began, 1), "kind": kind, **facts}
        text = json.dumps(_plain(line), allow_nan=False)
        with (self.out / RESULTS).open("ab", 0) as file:  # one write, which no other process cuts in two
            file.write(text.encode() + b"\n")
        print(text if len(text) <= 400 else text[:400] + " ...", file=self.console, flush=True)

    def fact(self, name: str, value: Any) -> None:
        self.write("fact", name=name, value=value)

    def series(self, name: str, unit: str, values: list[float], **facts: Any) -> None:
        self.write("series", name=name, unit=unit, values=values, **facts)

    def check(self, name: str, ok: bool, value: float | None, limit: float | None, note: str = "") -> None:
        self.write("check", name=name, ok=ok, value=value, limit=limit, note=note)

    def failed(self, error: BaseException, **facts: Any) -> None:
        """Add what was raised to the results, and its traceback to the log, too."""
        trace = "".join(traceback.format_exception(error))
        with (self.out / LOG).open("a") as file:
            file.write(trace)
        self.write("failed", error=f"{type(error).__name__}: {error}", trace=trace, **facts)


def _plain(value: Any, longest: int = LONGEST) -> Any:
    """`value` as JSON has it: a number that is not finite becomes null, a long string is cut in its middle."""
    if isinstance(value, dict):
        return {str(key): _plain(one, LONGEST_TRACE if key == "trace" else LONGEST) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    text = str(value)
    return text if len(text) <= longest else f"{text[: longest // 4]} ... {text[-3 * longest // 4 :]}"
