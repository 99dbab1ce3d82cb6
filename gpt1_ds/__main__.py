"""`gpt1-ds`, and `python -P -m gpt1_ds`, which is the same."""

import os
import sys

from gpt1_ds.common import stop_signals

LAUNCHERS = {"RANK", "SLURM_PROCID"}  # variables of a process that torchrun or srun started


def _use_utf8() -> None:
    """Starts again in Python's UTF-8 mode, the default from 3.15 on, where the locale or PYTHONIOENCODING asks for
    another encoding: files and what is written are UTF-8 here, and libraries read theirs so, too.
    """
    if os.environ.pop("PYTHONIOENCODING", "") or sys.getfilesystemencoding() != "utf-8":
        os.environ["PYTHONUTF8"] = "1"  # for the programs that this one starts
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _open_closed_streams() -> None:
    """What a shell has closed (`>&-`) leads nowhere: the next file would get its number, and what is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115 - lives as long as the program
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115


def main() -> int:
    """Runs the program, and returns its exit code. What it imports takes a while, in which signals may come, too."""
    _use_utf8()
    _open_closed_streams()
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
