"""Errors that are for people: one line naming the key or file, the value, and the way out.

The program prints them without a traceback and exits with their `code`: 2, but in a job 75 for a fault of the world,
which is tried again. Anything else that is raised is a bug of ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

EXIT_USAGE = 2  # wrong usage, configuration or data
EXIT_CONTINUE = 75  # EX_TEMPFAIL: everything is saved, run me again to continue
EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130  # Ctrl-C, as shells count it


class UserError(Exception):
    """Something the person at the keyboard can fix. `problems` holds one line each."""

    passes = False  # whether the same command may succeed later: a job is then tried again
    on_all_ranks = False  # whether every rank raises it alike, so that one need say it
    may_restart = False  # whether ranks that begin again from a checkpoint may come past it
    way_out = ""  # what a person can do, at the end of each line; left out where a program does it itself

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    @classmethod
    def raise_all(cls, problems: Iterable[str]) -> None:
        """Raises one error naming every problem, or returns when there is none."""
        found = tuple(problems)
        if found:
            raise cls(*found)

    @property
    def code(self) -> int:
        """Returns the program's exit code."""
        return EXIT_USAGE

    def __reduce__(self) -> tuple[type[UserError], tuple[str, ...]]:  # crosses process boundaries with its lines
        return type(self), self.problems


class ConfigError(UserError):
    """A configuration key or a combination of keys that cannot run. Each problem is one line, whatever a file held."""

    LONGEST = 500  # characters of a line; its ends are kept
    MOST = 40  # lines

    def __init__(self, *problems: str) -> None:
        if len(problems) > self.MOST:
            problems = (*problems[: self.MOST - 1], f"and {len(problems) - self.MOST + 1} more")
        lines = [problem.replace("\n", "\\n") for problem in problems]
        half = self.LONGEST // 2
        super().__init__(*(f"{x[:half]} ... {x[-half:]}" if len(x) > self.LONGEST else x for x in lines))


class ArgumentError(UserError):
    """An argument that a function cannot use. Each problem begins with its name: `top_p=2 must be ...`."""

    def renamed(self, **names: str) -> ArgumentError:
        """Returns the same error where arguments have other names."""
        found = [re.match(r"(\w+)(.*)", problem, re.DOTALL) for problem in self.problems]
        return ArgumentError(*(f"{names.get(one[1], one[1])}{one[2]}" for one in found if one))

    def of_options(self) -> UserError:
        """Returns the same error for a person at a command line: `--top-p=2 must be ...`."""
        found = [re.match(r"(\w+)(.*)", problem, re.DOTALL) for problem in self.problems]
        return UserError(*(f"--{one[1].replace('_', '-')}{one[2]}" for one in found if one))


class DataError(UserError):
    """A corpus, tokenizer or dataset that cannot be used as it is."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged, of another program or unsafe."""


class DamagedError(CheckpointError):
    """A checkpoint whose files are not as they were written. A run that resumes takes the newest one that is whole."""

    way_out = "; copy it again from where it is whole, or name another checkpoint of its run"


class LaunchError(UserError):
    """Processes that cannot be started or cannot find one another."""


class LostRankError(LaunchError):
    """A rank that was killed, or that failed for no reason a person could fix."""

    may_restart = True


class LockedError(LaunchError):
    """A run folder that another process writes."""

    passes = True


class WorldError(UserError):
    """A fault of the world, not of what was asked: a full disk, a file server that is away. Nothing saved is lost."""

    passes = True

    @property
    def code(self) -> int:
        return EXIT_CONTINUE if os.environ.get("SLURM_JOB_ID") else EXIT_USAGE


class NodeError(WorldError):
    """A fault of one node alone; the same job may succeed on others."""

    def __init__(self, host: str, *problems: str) -> None:
        super().__init__(*problems)
        self.host = host

    def __reduce__(self) -> tuple[type[UserError], tuple[str, ...]]:
        return type(self), (self.host, *self.problems)


class TrainingError(Exception):
    """A run that cannot continue for a reason in the training itself; one line, exit code 1."""

    code = EXIT_FAILURE
    passes = False
    on_all_ranks = False
    may_restart = False


class StoppedRankError(TrainingError):
    """A rank that made no progress any more, or that the kernel killed because memory ran out."""

    may_restart = True


class UnsavedError(TrainingError):
    """A run whose last state a fault of the world kept off the disk."""

    passes = True


def one_line(said: object, most: int = 300) -> str:
    """Returns what a library says of its error, for the middle of a line of ours."""
    return " ".join(str(said).split())[:most].rstrip(".;")
