"""`gpt1-ds`, and `python -P -m gpt1_ds`, which is the same."""

import os
import sys

from gpt1_ds.common import stop_signals

LAUNCHERS = {"RANK", "SLURM_PROCID"}  # variables of a process that torchrun or srun started


def main() -> int:
    """Runs the program, and returns its exit code. What it imports takes a while, in which signals may come, too."""
    if not LAUNCHERS & os.environ.keys():  # a handler would wait for the library that waits for other ranks
        stop_signals.say_termination()
    try:
        from gpt1_ds.cli import main as program
    except KeyboardInterrupt:
        print("gpt1-ds: interrupted", file=sys.stderr)
        return 130  # as gpt1_ds.common.errors.EXIT_INTERRUPTED, which may not be there yet
    return program()


if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109 - as Python writes it
        del sys.path[0]  # a file there could stand in for any library; with -P it was never there
    sys.exit(main())
