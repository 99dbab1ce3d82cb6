"""What a campaign has seen: one line of JSON per kill and per finished run, kept as they come."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpt1_ds.common.rundir import read_jsonl
from tools.faults.attempt import IN_SAVES, PHASES

LAYOUTS_WANTED = 8
SAVES_WANTED = 0.2  # share of the kills that have to hit a save of several ranks


@dataclass(frozen=True)
class Kill:
    """`lost` are the steps between the newest checkpoint and the last logged one: they are made again."""

    run: int
    layout: str
    ranks: int
    victim: str
    aim: str
    phase: str
    lost: int


@dataclass(frozen=True)
class Finished:
    """A run that was compared with the undisturbed one of its layout, and had the same bits."""

    run: int
    layout: str
    background: str


class Ledger:
    """The lines of `path`, read again by a campaign that was interrupted; a torn last line counts for nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = list(read_jsonl(path))
        self.kills = [Kill(**line["kill"]) for line in lines if "kill" in line]
        self.finished = [Finished(**line["finished"]) for line in lines if "finished" in line]
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            with open(path, "ab") as file:
                file.write(b"\n")

    def add(self, entry: Kill | Finished) -> None:
        kind = "kill" if isinstance(entry, Kill) else "finished"
        with open(self.path, "a") as file:
            file.write(json.dumps({kind: asdict(entry)}) + "\n")
        if isinstance(entry, Kill):
            self.kills.append(entry)
        else:
            self.finished.append(entry)

    def kills_of(self, run: int) -> int:
        return sum(kill.run == run for kill in self.kills)

    @property
    def saves_of_several_ranks(self) -> int:
        return sum(kill.ranks > 1 and kill.phase in IN_SAVES for kill in self.kills)


def table(kills: Sequence[Kill]) -> str:
    """Kills by layout and by the phase that they hit."""
    counts = Counter((kill.layout, kill.phase) for kill in kills)
    layouts = list(dict.fromkeys(kill.layout for kill in kills))
    rows = [[layout, *(counts[layout, phase] for phase in PHASES)] for layout in sorted(layouts)]
    rows.append(["all", *(sum(counts[layout, phase] for layout in layouts) for phase in PHASES)])
    lines = ["".join([f"{'layout':12}", *(f"{phase:>11}" for phase in PHASES), f"{'kills':>8}"])]
    lines += ["".join([f"{row[0]:12}", *(f"{n:>11}" for n in row[1:]), f"{sum(row[1:]):>8}"]) for row in rows]  # type: ignore[arg-type]
    return "\n".join(lines)


def shortfalls(ledger: Ledger) -> list[str]:
    """What a campaign of many kills has to show and this one does not."""
    layouts = {kill.layout for kill in ledger.kills}
    found = []
    if len(layouts) < LAYOUTS_WANTED:
        found.append(f"{len(layouts)} layouts were hit, {LAYOUTS_WANTED} are wanted")
    wanted = round(SAVES_WANTED * len(ledger.kills))
    if ledger.saves_of_several_ranks < wanted:
        found.append(f"{ledger.saves_of_several_ranks} kills hit a save of several ranks, {wanted} are wanted")
    missing = [phase for phase in PHASES if phase != "end" and not any(kill.phase == phase for kill in ledger.kills)]
    if missing:
        found.append(f"no kill hit: {', '.join(missing)}")
    return found
