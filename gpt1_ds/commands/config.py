"""`config`: presets and keys, as a person looks for them. It reads files alone: no data, no checkpoint, no torch."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from gpt1_ds.commands.parser import Command, Group
from gpt1_ds.common.errors import UserError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.common.text import shown

if TYPE_CHECKING:
    from gpt1_ds.config import Config

NAMES = "a preset, a YAML file, or the folder of a run"
STUDIES = {"arms": "scaling plan", "tasks": "finetune study"}  # a key of a study's file alone -> what reads it


def _words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="*", metavar="WORD", help="only those with all these words (default: all)")


def _ls(options: argparse.Namespace) -> int:
    from gpt1_ds.config.reference import described_presets

    found = [(name, about) for name, about in described_presets() if _has(options.text, name, about)]
    if not found:
        raise UserError(
            f"no preset has {' and '.join(options.text)} in its name or its first line; `gpt1-ds config ls` lists all"
        )
    width = max(len(name) for name, _ in found)
    for name, about in found:
        print(f"{name:{width}}  {about}")
    return 0


def _keys(options: argparse.Namespace) -> int:
    from gpt1_ds.config import Config
    from gpt1_ds.config.reference import all_keys
    from gpt1_ds.config.values import alike

    found = [key for key in all_keys() if _has(options.text, key.name, key.meaning, key.choices)]
    if not found:
        close = alike(Config, tuple(options.text[0].split(".")))
        meant = f"did you mean {' or '.join(close)}?" if close else "`gpt1-ds config keys` lists all"
        raise UserError(f"no key has {' and '.join(options.text)} in its name or its meaning; {meant}")
    for key in found:
        print(f"{key.name}={key.default}  ({key.choices})\n    {key.meaning}")
    return 0


def _has(words: Sequence[str], *texts: str) -> bool:
    return all(word.lower() in " ".join(texts).lower() for word in words)


def _show_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", action="append", default=[], metavar="FILE", help="another way to name one (default: none)"
    )
    order = f"{NAMES}; the last of several wins, and key=value arguments over all of them"
    parser.add_argument("text", nargs="*", metavar="NAME", help=order)


def _show(options: argparse.Namespace) -> int:
    from gpt1_ds.config import to_yaml

    overrides = [word for word in options.text if "=" in word and not Path(word).exists()]
    names = [*options.config, *(word for word in options.text if word not in overrides)]
    print(shown(to_yaml(_read(names, overrides))), end="")
    return 0


def _diff_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("one", metavar="NAME", help=NAMES)
    parser.add_argument("other", nargs="?", metavar="OTHER", help="the same (default: NAME beside the defaults)")


def _diff(options: argparse.Namespace) -> int:
    from gpt1_ds.config.values import as_text
    from gpt1_ds.training.resume import changes

    names = [[options.one], [options.other]] if options.other else [[], [options.one]]
    before, after = map(_read, names)
    found = {key: values for key, values in changes(before, after).items() if key != "run.name"}
    width = max(map(len, found), default=0)
    for key, values in found.items():
        one, other = (as_text(value) or '""' for value in values)
        print(shown(f"{key:{width}}  {one} -> {other}"))
    if not found:
        print(f"{options.one} and {options.other or 'the defaults'} differ in no key but run.name")
    return 0


def _read(names: Sequence[str], overrides: Sequence[str] = ()) -> Config:
    """Returns the configuration that names and overrides make; of one run its own. Raises UserError."""
    from gpt1_ds.config import load, load_recorded

    runs = [name for name in names if Path(name).is_dir()]
    if runs and (len(names) > 1 or overrides):
        raise UserError(f"{runs[0]}: is the folder of a run, which is shown as it was: leave the other arguments out")
    if runs:
        recorded = RunDir(Path(runs[0])).config
        if not recorded.is_file():
            raise UserError(f"{runs[0]}: no folder of a run: it has no {recorded.name}; name {NAMES}")
        return load_recorded(recorded)
    _refuse_studies(names)
    return load(names, overrides)


def _refuse_studies(names: Iterable[str]) -> None:
    """Raises UserError for a study's file: its keys are others."""
    from gpt1_ds.config.presets import find_file
    from gpt1_ds.config.yaml_file import read_mapping

    for name in names:
        path = find_file(name)
        if found := STUDIES.keys() & read_mapping(path).keys():
            raise UserError(
                f"{name}: is the file of a study, {path}; `gpt1-ds {STUDIES[found.pop()]} {quote(name)}` reads it"
            )


COMMAND = Group(
    "config",
    "presets and keys",
    (
        Command("ls", "the shipped presets, a line each", _ls, _words),
        Command("show", "what a preset, files and key=value arguments make, or what a run had", _show, _show_options),
        Command("keys", "keys with their defaults, values and meanings", _keys, _words),
        Command("diff", "the keys in which two presets, files or runs differ", _diff, _diff_options),
    ),
)
