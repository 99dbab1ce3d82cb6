"""A command, a group of commands, and the parser that answers a wrong argument with the right form."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from gpt1_ds.common.errors import UserError

Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"

ALIASES = {  # an option, and the names that other commands have for it
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
        """Raises UserError. Where a typo makes a required option seem to be missing, it is named."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for argument in self.given if "required" in message else ():
            name = argument.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                similar = _similar_option(name, known)
                hint = f"did you mean {similar[0]}?" if similar else f"see {self.prog} --help"
                raise UserError(f"{name}: not an option of {self.prog}; {hint}")
        raise UserError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(value, str) and action.choices is not None and value not in action.choices:
            similar = difflib.get_close_matches(value, map(str, action.choices), 2)
            if similar or not action.option_strings:  # a command: argparse would list the hidden ones, too
                hint = f"did you mean {' or '.join(similar)}?" if similar else self._known_names(action)
                name = "/".join(action.option_strings) or self.prog
                raise UserError(f"{name} {value}: there is no {value}; {hint}")
        super()._check_value(action, value)

    def _known_names(self, action: argparse.Action) -> str:
        """Returns the hint for a name that is similar to none: the names of a group or a list, or the page of help."""
        is_group = isinstance(action, argparse._SubParsersAction)
        names = str(action.metavar).split("|") if is_group else [*map(str, action.choices or ())]
        return f"choose {', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else f"see {self.prog} --help"


def _similar_option(name: str, known: Sequence[str]) -> list[str]:
    """Returns the option that is most similar to `name`, if any; compared without the dashes, which all begin with."""
    options = {option.lstrip("-"): option for option in known}
    return [options[similar] for similar in difflib.get_close_matches(name.lstrip("-"), options, 1)]


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
        """Adds the command; argparse names it in the help where it is `listed`."""
        listing: dict[str, Any] = {"help": self.help} if listed else {}
        parser = parsers.add_parser(self.name, description=self.help, **listing)
        self.add_options(parser)
        _add_aliases(parser)
        parser.set_defaults(command=self.run, parser=parser, passes_on=self.passes_on)


def _add_aliases(parser: Parser) -> None:
    """Adds the names that other commands have for the same option, without listing them in the help."""
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
        """Adds the group and its commands."""
        names = "|".join(command.name for command in self.commands if not command.hidden)
        parser = parsers.add_parser(self.name, description=self.help)
        subparsers = parser.add_subparsers(title="commands", required=True, metavar=names)
        for command in self.commands:
            command.add_to(subparsers, listed=not command.hidden)


Members: TypeAlias = Sequence[Command | Group]  # of the program


def joined(members: Members, arguments: Sequence[str]) -> Sequence[str]:
    """Returns the arguments with a command's name of two parts, `finetune study`, as one argument."""
    for name in (member.name.split() for member in members):
        if len(name) > 1 and list(arguments[: len(name)]) == name:
            return [" ".join(name), *arguments[len(name) :]]
    return arguments


def parse_arguments(members: Members, arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the options of a command line of the program with these commands. Raises UserError for wrong usage."""
    whole = Parser("gpt1-ds")
    commands = whole.add_subparsers(prog="gpt1-ds", required=True, metavar="COMMAND")
    for member in members:
        member.add_to(commands)
    options: argparse.Namespace
    options, rest = whole.parse_known_args(joined(members, arguments))
    place_arguments(options, rest, arguments)
    return options


def place_arguments(options: argparse.Namespace, rest: Sequence[str], arguments: Sequence[str]) -> None:
    """Puts positional arguments where they belong: argparse leaves in `rest` those that follow an option. The first one
    is the checkpoint of a command that needs one, unless --checkpoint names it.

    Raises UserError for arguments that the command does not take, and for a missing checkpoint.
    """
    if options.passes_on:
        return
    command, first = options.parser.prog, getattr(options, "first", None)
    list_name = next((name for name in LISTS if hasattr(options, name)), None)
    listed = getattr(options, list_name) if list_name else ()
    positional = [argument for argument in (first, *listed) if argument is not None]
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
    if list_name:
        setattr(options, list_name, positional)
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
    similar = _similar_option(f"--{key}", re.findall(r"--[\w-]+", options.parser.format_usage()))
    if takes_keys:
        from gpt1_ds.config import Config
        from gpt1_ds.config.values import alike

        name = key.replace("-", "_")
        keys = alike(Config, (name,))
        if not similar or any(candidate.endswith(f".{name}") for candidate in keys):  # --steps is no slip for --sweep
            similar = [f"{candidate}={value}" for candidate in keys]
    hint = f"did you mean {' or '.join(similar)}?" if similar else f"see {options.parser.prog} --help"
    return f"not an option of {options.parser.prog}; {hint}"
