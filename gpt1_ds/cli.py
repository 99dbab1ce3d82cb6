"""The program `gpt1-ds`: its parser, put together from commands/, and its exit codes."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpt1_ds import __version__
from gpt1_ds.commands import (
    checkpoint,
    completion,
    config,
    data,
    doctor,
    embed,
    evaluate,
    finetune,
    guide,
    plan,
    predict,
    pretrain,
    report,
    sample,
    scaling,
    slurm,
    tokenizer,
    tracking,
)
from gpt1_ds.commands.parser import Command, Group, Parser, joined, place_arguments
from gpt1_ds.common import memory
from gpt1_ds.common.errors import (
    EXIT_CONTINUE,
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    ArgumentError,
    LaunchError,
    TrainingError,
    UserError,
)
from gpt1_ds.common.files import explain
from gpt1_ds.common.log import say
from gpt1_ds.common.text import is_utf8, shown
from gpt1_ds.slurm.faults import record_fault

ABOUT = """Pre-train GPT-1, GPT-2, BERT, RoBERTa or T5 on raw text, fine-tune it on tasks, and use it: the same commands
on two CPU cores and on a GPU cluster, and the same losses however the model is split over processes."""
SAFE_PATH = "PYTHONSAFEPATH"  # Python's own variable: as if each were started with -P
GROUPS: dict[str, tuple[Command | Group, ...]] = {
    "start here": (guide.COMMAND, doctor.COMMAND, config.COMMAND, completion.COMMAND),
    "text": (tokenizer.COMMAND, data.COMMAND),
    "training": (plan.COMMAND, pretrain.COMMAND, *finetune.COMMANDS),
    "trained models": (
        sample.COMMAND,
        sample.FILL,
        embed.COMMAND,
        embed.SEARCH,
        evaluate.COMMAND,
        predict.COMMAND,
        checkpoint.COMMAND,
        report.COMMAND,
    ),
    "clusters and many runs": (slurm.COMMAND, scaling.COMMAND, tracking.COMMAND),
}
EXAMPLES = """examples:
  gpt1-ds doctor
  gpt1-ds tokenizer train --input BOOKS --out tok --vocab-size 8000
  gpt1-ds data build --input BOOKS --tokenizer tok --out data/books
  gpt1-ds pretrain -c pretrain/books_cpu data.path=data/books --nproc 2
  gpt1-ds finetune -c finetune/cola checkpoint.init_from=runs/books_cpu
  gpt1-ds predict runs/cola "The book was read."
  gpt1-ds sample runs/books_cpu --prompt "It was"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code: 0 done, 2 wrong usage, config or data, 75 saved and to be continued (in a job
    also when a fault of the world is in the way), else failed.
    """
    with _safe_path():
        return _main(arguments)


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """No Python that this program starts runs files of the current folder in the place of libraries: fork server, data
    workers, torchrun, trackers. What PYTHONPATH names is found as before.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


def _main(arguments: Sequence[str] | None) -> int:
    code = 0
    try:
        arguments = sys.argv[1:] if arguments is None else arguments
        UserError.raise_all(_unwritable(arguments))
        options = parse(arguments)
        if not hasattr(options, "command"):
            parser().print_help()
            return EXIT_USAGE
        command: Callable[[argparse.Namespace], int] = options.command
        code = command(options)
        if code == EXIT_CONTINUE and arguments[0] != "slurm":  # the steps of a job, which continues by itself
            with contextlib.suppress(BrokenPipeError):  # of `| tee`, which Ctrl-C ends while the run saves
                say(f"to continue: {_command_line(arguments)}")
        sys.stdout.flush()  # here, where a fault still becomes a message
        return code
    except LaunchError as error:
        return _explain(error, error.code if len(error.problems) == 1 and "\n" not in str(error) else EXIT_FAILURE)
    except ArgumentError as error:
        return _explain(error.of_options(), error.code)
    except UserError as error:
        return _explain(error, error.code)
    except TrainingError as error:
        return _explain(error, error.code)
    except KeyboardInterrupt as interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends now: pressing again changes nothing
        return _explain(UserError(": ".join(["interrupted", *map(str, interrupt.args)])), EXIT_INTERRUPTED)
    except BrokenPipeError:
        _drop_output()
        return code or EXIT_FAILURE
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:
            error.filename = error.filename or "standard output"
            _drop_output()
        explained = explain(error)
        if explained is None:
            raise
        return _explain(explained, code or explained.code)
    except (MemoryError, RuntimeError) as error:
        if (short := memory.shortage(error)) is None:
            raise
        return _explain(TrainingError(short), EXIT_FAILURE)


def _drop_output() -> None:
    """Drops what standard output has not taken: Python would write it once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unwritable(arguments: Sequence[str]) -> Iterator[str]:
    """Yields one line per argument whose bytes are no UTF-8: no configuration or result could name it."""
    for word in arguments:
        if not is_utf8(word):
            yield f"{word}: this argument is not UTF-8; rename the file or folder, or set your terminal to UTF-8"


def _command_line(arguments: Sequence[str] | None) -> str:
    """Returns this command as a person writes it, quoted for a shell."""
    typed = Path(sys.argv[0])
    program = ["gpt1-ds"] if shutil.which("gpt1-ds") == sys.argv[0] else [sys.argv[0]]
    if typed.name == "__main__.py":
        program = [sys.orig_argv[0], "-m", "gpt1_ds"]
    return shlex.join([*program, *(sys.argv[1:] if arguments is None else arguments)])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the options of one command line, and the function that runs it as `command`, which is missing where no
    command is named. Raises UserError for wrong usage.
    """
    options: argparse.Namespace
    options, rest = parser().parse_known_args(joined(finetune.COMMANDS, arguments))
    if hasattr(options, "command"):
        place_arguments(options, rest, arguments)
    return options


def parser() -> Parser:
    """Returns the parser of the whole program."""
    usage = "gpt1-ds [-h] [--version] COMMAND ..."
    style = argparse.RawDescriptionHelpFormatter
    whole = Parser("gpt1-ds", usage=usage, epilog=EXAMPLES, formatter_class=style)
    whole.add_argument("--version", action="version", version=f"gpt1-ds {__version__}", help="print it")
    whole.set_defaults(program=[member for members in GROUPS.values() for member in members])  # for `completion`
    commands = whole.add_subparsers(prog="gpt1-ds", help=argparse.SUPPRESS)  # listed in groups, below
    listed = ""
    for group, members in GROUPS.items():
        listed += f"\n{group}:\n"
        for member in members:
            member.add_to(commands)
            listed += f"  {member.name:<15} {member.help}\n"
    whole.description = f"{ABOUT}\n{listed}\ngpt1-ds COMMAND --help says more."
    return whole


def _explain(error: UserError | TrainingError, code: int) -> int:
    record_fault(error)
    with contextlib.suppress(OSError):  # a job's output may lie on the very disk that is full
        lines = [f"{one}{error.way_out}" for one in error.problems] if isinstance(error, UserError) else [str(error)]
        for line in lines:
            print(f"gpt1-ds: {shown(line)}", file=sys.stderr)
    return code
