"""A command, a group of commands, the options that several commands take, and the parser that answers a wrong word with
the right form."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from gpt1_ds.common.errors import UserError

if TYPE_CHECKING:
    from gpt1_ds.config import Config
    from gpt1_ds.training.checks import Start

Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"

ALIASES = {  # an option, and what the same is called elsewhere
    "--out": ("--output",),
    "--output": ("--out",),
    "--prompt": ("--text",),
    "--text": ("--prompt",),
    "--query": ("--text", "--prompt"),
}
LISTS = ("overrides", "text")  # options that take the arguments that belong to no other option


class Parser(argparse.ArgumentParser):
    """Wrong usage is one line, a UserError, with what was probably meant."""

    given: Sequence[str] = ()  # the arguments that are being parsed

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        self.given = list(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """An option that is missing is mostly one that is there with a slip of the pen."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for argument in self.given if "required" in message else ():
            name = argument.partition("=")[0]
            if name.startswith("--") and not any(one.startswith(name) for one in known):
                close = _close_option(name, known)
                meant = f"did you mean {close[0]}?" if close else f"see {self.prog} --help"
                raise UserError(f"{name}: not an option of {self.prog}; {meant}")
        raise UserError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(value, str) and action.choices is not None and value not in action.choices:
            close = difflib.get_close_matches(value, map(str, action.choices), 2)
            if close or not action.option_strings:  # a command: argparse would list the hidden ones, too
                meant = f"did you mean {' or '.join(close)}?" if close else self._names(action)
                name = "/".join(action.option_strings) or self.prog
                raise UserError(f"{name} {value}: there is no {value}; {meant}")
        super()._check_value(action, value)

    def _names(self, action: argparse.Action) -> str:
        """Returns the advice about a name that is like none: the names of a group or a list, or the page of help."""
        many = isinstance(action, argparse._SubParsersAction)
        names = str(action.metavar).split("|") if many else [*map(str, action.choices or ())]
        return f"choose {', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else f"see {self.prog} --help"


def _close_option(name: str, known: Sequence[str]) -> list[str]:
    """The option that `name` is a slip of, if any; compared without the dashes, which all options begin with."""
    options = {option.lstrip("-"): option for option in known}
    return [options[bare] for bare in difflib.get_close_matches(name.lstrip("-"), options, 1)]


@dataclass(frozen=True)
class Command:
    """`run` gets the options and returns the exit code. A hidden command works, but help and completion omit it. One
    that passes arguments on takes options of others, too: `parser.given` has all its arguments.
    """

    name: str
    help: str
    run: Callable[[argparse.Namespace], int]
    add_options: Callable[[Parser], None] = lambda _: None
    hidden: bool = False
    passes_on: bool = False

    def add_to(self, parsers: Subparsers, listed: bool = False) -> None:
        """Add the command; argparse names it in the help where it is `listed`."""
        listing: dict[str, Any] = {"help": self.help} if listed else {}
        parser = parsers.add_parser(self.name, description=self.help, **listing)
        self.add_options(parser)
        _add_aliases(parser)
        parser.set_defaults(command=self.run, parser=parser, passes_on=self.passes_on)


def _add_aliases(parser: Parser) -> None:
    """Take the names that other commands have for the same, without listing them in the help."""
    known = parser._option_string_actions
    for name, others in ALIASES.items():
        if name in known:
            for other in others:
                known.setdefault(other, known[name])


@dataclass(frozen=True)
class Group:
    """A command of several kinds, each with its own options, like `checkpoint verify`."""

    name: str
    help: str
    commands: tuple[Command, ...]

    def add_to(self, parsers: Subparsers) -> None:
        """Add the group and its commands."""
        names = "|".join(command.name for command in self.commands if not command.hidden)
        parser = parsers.add_parser(self.name, description=self.help)
        own = parser.add_subparsers(title="commands", required=True, metavar=names)
        for command in self.commands:
            command.add_to(own, listed=not command.hidden)


Members: TypeAlias = Sequence[Command | Group]  # of the program


def joined(members: Members, arguments: Sequence[str]) -> Sequence[str]:
    """The arguments with a name of two words, `finetune study`, as one."""
    names = (member.name.split() for member in members)
    long = next((name for name in names if len(name) > 1 and list(arguments[: len(name)]) == name), [])
    return [" ".join(long), *arguments[len(long) :]] if long else arguments


def parse_arguments(members: Members, arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line of the program that has these commands. Raises UserError for wrong usage."""
    whole = Parser("gpt1-ds")
    commands = whole.add_subparsers(prog="gpt1-ds", required=True, metavar="COMMAND")
    for member in members:
        member.add_to(commands)
    options: argparse.Namespace
    options, rest = whole.parse_known_args(joined(members, arguments))
    place_arguments(options, rest, arguments)
    return options


def place_arguments(options: argparse.Namespace, rest: Sequence[str], arguments: Sequence[str]) -> None:
    """Put positional arguments where they belong: argparse leaves in `rest` those that follow an option. The first one
    is the checkpoint of a command that needs one, unless --checkpoint names it.

    Raises UserError for arguments that the command does not take, and for a missing checkpoint.
    """
    if options.passes_on:
        return
    command, first = options.parser.prog, getattr(options, "first", None)
    found = next((name for name in LISTS if hasattr(options, name)), None)
    positional = [one for one in (first, *(getattr(options, found) if found else ())) if one is not None]
    problems = []
    for argument in rest:
        if argument.startswith("-"):
            problems.append(f"{argument}: {_right_form(argument, arguments, options)}")
        else:
            positional.append(argument)
    if not problems and hasattr(options, "checkpoint") and options.checkpoint is None:
        if not positional:
            raise UserError(f"{command}: name a checkpoint, a run folder for example: CKPT or --checkpoint CKPT")
        options.checkpoint = positional.pop(0)
    if found:
        setattr(options, found, positional)
    elif positional and not problems:
        problems.append(f"{' '.join(positional)}: {command} takes no such argument; see {command} --help")
    UserError.raise_all(problems)


def _right_form(argument: str, arguments: Sequence[str], options: argparse.Namespace) -> str:
    """Returns what to write in the place of `argument`, an option that the command does not have."""
    key, equals, value = argument.lstrip("-").partition("=")
    if not equals:
        following = arguments[arguments.index(argument) + 1 :]
        value = following[0] if following and not following[0].startswith("-") else "VALUE"
    takes_keys = hasattr(options, "overrides")
    if "." in key and takes_keys:
        return f"keys are written without dashes: {key}={value}"
    close = _close_option(f"--{key}", re.findall(r"--[\w-]+", options.parser.format_usage()))
    if takes_keys:
        from gpt1_ds.config import Config
        from gpt1_ds.config.values import alike

        name = key.replace("-", "_")
        keys = alike(Config, (name,))
        if not close or any(one.endswith(f".{name}") for one in keys):  # --steps is train.steps, not --sweep
            close = [f"{one}={value}" for one in keys]
    meant = f"did you mean {' or '.join(close)}?" if close else f"see {options.parser.prog} --help"
    return f"not an option of {options.parser.prog}; {meant}"


FILES = "YAML file or shipped preset; may be given several times, the last wins (default: none)"
CKPT = "a checkpoint folder, or a run folder: its best where it keeps one, else its newest"


def checkpoint(parser: argparse.ArgumentParser) -> None:
    """Adds what every command takes that reads a checkpoint, before its other arguments."""
    parser.add_argument("first", nargs="?", metavar="CKPT", help=CKPT)
    parser.add_argument("--checkpoint", metavar="CKPT", help="another way to name CKPT (default: the first argument)")


def configuration(parser: argparse.ArgumentParser) -> None:
    """Adds what every command takes that reads a configuration."""
    parser.add_argument("-c", "--config", action="append", default=[], metavar="FILE", help=FILES)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="configuration keys, like model.layers=12")
    parser.add_argument("--local_rank", "--local-rank", help=argparse.SUPPRESS)  # DeepSpeed's launcher passes it


def ranks(parser: argparse.ArgumentParser) -> None:
    """Adds what every command takes that starts ranks."""
    started = "start N local ranks (default: one, or what torchrun or srun starts)"
    parser.add_argument("--nproc", type=int, metavar="N", help=started)


def pooling(parser: argparse.ArgumentParser) -> None:
    """Adds what every command takes that makes vectors of sentences."""
    states = (
        "what a text's vector is: mean or max of the last states, that of the first token (cls), or the mean of the "
        "token embeddings alone (words) (default: the checkpoint's own, or mean)"
    )
    parser.add_argument("--pooling", choices=("mean", "cls", "max", "words"), help=states)


def training(parser: argparse.ArgumentParser) -> None:
    """Adds what the commands take that train one model."""
    configuration(parser)
    ranks(parser)
    lost = "start the ranks of --nproc again, up to N times, when one was lost and a step was saved since (default: 0)"
    parser.add_argument("--restarts", type=int, default=0, metavar="N", help=lost)
    parser.add_argument("--print-config", action="store_true", help="print the resolved configuration and exit")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the size of the run and exit")
    values = "make a run for each value; of several --sweep, for each combination of values (default: one run)"
    parser.add_argument("--sweep", action="append", default=[], metavar="KEY=A,B,C", help=values)
    parser.add_argument("--jobs", type=int, metavar="N", help="how many runs of a sweep run at a time (default: 1)")


def say_unread(options: argparse.Namespace, *configs: Config) -> None:
    """Says which keys on the command line no training run of `configs` reads. Rank 0 does, once for all."""
    from gpt1_ds.common.log import say
    from gpt1_ds.config.unread import unread
    from gpt1_ds.tasks.registry import kind_of

    first, *others = (unread(config, options.overrides, kind_of(config.task)) for config in configs)
    for key, line in first.items() if os.environ.get("RANK", "0") == "0" else ():
        if all(key in other for other in others):
            say(line)


def train(options: argparse.Namespace, config: Config, plan: Callable[[Start], Iterable[str]]) -> int:
    """Trains as `config` says, or prints what `plan` says of the run for --dry-run. Returns the exit code."""
    from gpt1_ds.launcher import accelerator, launch
    from gpt1_ds.training import restarts
    from gpt1_ds.training.checks import Start

    restarts.check(options.restarts, options.nproc)
    world = launch.world(options.nproc)
    start = Start(accelerator.with_fitted_micro_batch(config, world), world)
    start.check()
    say_unread(options, start.config)
    if options.dry_run:
        print(*plan(start), sep="\n")
        return 0
    start = start.with_corpus()
    if (step := start.finished_step()) is not None:
        start.say_finished(step)
        return 0
    accelerator.prepare(start.config, options.nproc)
    is_text = start.config.task is None
    target = "pretraining:pretrain" if is_text else "finetuning:finetune"
    given = start.resolved if is_text else start.config
    code = restarts.start(f"gpt1_ds.training.{target}", given, options.nproc, start.run_dir, options.restarts)
    from gpt1_ds.report.profile_page import update_profile  # which loads what draws

    update_profile(start.config)
    return code


def study(parser: argparse.ArgumentParser, example: str) -> None:
    """Adds what the commands take that work on a study, which is named before their other arguments."""
    parser.add_argument("study", metavar="STUDY", help=f"YAML file or shipped preset, like {example}")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="configuration keys of every cell"
    )


def jobs(parser: argparse.ArgumentParser) -> None:
    """Adds what the commands take that run a study."""
    parser.add_argument("--jobs", type=int, metavar="N", help="how many cells run at a time (default: the study's)")


def unwrap(parser: argparse.ArgumentParser) -> None:
    """Adds --unwrap, for the commands that read text."""
    parser.add_argument("--unwrap", action="store_true", help="join hard-wrapped lines inside paragraphs")


def texts(parser: argparse.ArgumentParser) -> None:
    """Adds the texts of the commands that read some."""
    inputs = (
        "files and folders (.txt, .jsonl, .parquet, what datasets saved), addresses like s3://..., "
        "hf:NAME[:CONFIG][:SPLIT] from the Hugging Face hub, or python-docs"
    )
    parser.add_argument("--input", nargs="+", required=True, metavar="PATH", help=inputs)
    key = "the key of JSON lines, or the column of tables, that holds the text (default: %(default)s)"
    parser.add_argument("--text-key", default="text", metavar="K", help=key)


def unreadable(option: str, path: str, holds: str, output: str | None = None) -> Iterator[str]:
    """Yields why a command cannot read the lines of the file that `option` names: there is none, or it is where the
    answers go, to `output` or to standard output, which would be read in turn, without an end.
    """
    source, target = Path(path), Path(output or "/dev/stdout")
    if source.is_dir():
        yield f"{path}: is a folder; {option} names a file with {holds} a line"
    elif not source.exists():
        yield f"{path}: no such file; {option} names one with {holds} a line"
    elif source.is_file() and target.is_file() and target.samefile(source):
        yield f"{output or 'standard output'}: is what is read, too; choose another {'--output' if output else 'file'}"


def unusable(option: str, path: str | None, in_place: bool = False) -> Iterator[str]:
    """Yields what is wrong with the path of a file that a command will write; nothing for None. `in_place` is of one
    that writes into what is there, a pipe for example; the others put a new file in its place.
    """
    if path is None:
        return
    place = Path(path)
    replaced = place.exists() and not in_place
    if place.is_dir() or not place.parent.is_dir() or (replaced and not place.is_file()):
        yield f"{path}: no file can be there; choose another {option}"
    elif not os.access(place if in_place and place.exists() else place.parent, os.W_OK):
        yield f"{path}: you may not write there; choose another {option}"
