"""Help that a stranger can work from, and arguments that are understood in more than one way."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from gpt1_ds import cli
from gpt1_ds.common.errors import UserError
from tests.helpers.program import assert_refused

REFERENCES = ("command", "parser", "program")  # of one parser each
INTERNAL = {"begin", "stage", "unstage", "node", "end", "line", "health", "prove", "verdict"}  # steps of launch/


def kinds(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}


def commands(parser: argparse.ArgumentParser, hidden: set[str]) -> Iterator[argparse.ArgumentParser]:
    if not kinds(parser):
        yield parser
    for name, command in kinds(parser).items():
        if name not in hidden:
            yield from commands(command, INTERNAL if name == "slurm" else set())


COMMANDS = list(commands(cli.parser(), set()))


def test_help_opens_with_what_the_program_does_and_lists_every_command_once() -> None:
    text = cli.parser().format_help()
    assert text.split("\n\n")[1].startswith("Pre-train GPT-1, GPT-2")
    assert "torch" not in text.split("\n\n")[1], "no note to developers"
    named = [member.name for members in cli.GROUPS.values() for member in members]
    assert sorted(named) == sorted(kinds(cli.parser()))
    assert [text.count(f"\n  {name:<15} ") for name in named] == [1] * len(named), text


def test_internal_steps_are_not_shown(gpt1) -> None:  # type: ignore[no-untyped-def]
    text = gpt1("slurm", "--help").out
    assert "submit" in text
    assert set(kinds(kinds(cli.parser())["slurm"])) >= INTERNAL, "but they are there"
    assert not [word for word in text.split() if word in INTERNAL]
    refused = gpt1("slurm", "foo")
    assert_refused(refused, "there is no foo")
    assert "verdict" not in refused.err


def test_import_names_every_family(gpt1) -> None:  # type: ignore[no-untyped-def]
    text = gpt1("checkpoint", "import", "--help").out
    assert [name for name in ("GPT-1", "GPT-2", "BERT", "RoBERTa", "T5") if name not in text] == []


@pytest.mark.parametrize("parser", COMMANDS, ids=lambda parser: parser.prog)
def test_every_option_has_help_and_its_default(parser: argparse.ArgumentParser) -> None:
    assert parser.description
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        name = action.option_strings or action.dest
        assert action.help, f"{parser.prog} {name}: no help"
        if action.option_strings and action.nargs != 0 and not action.required:
            assert "default" in action.help, f"{parser.prog} {name}: its default is not said"
    assert "verb" not in parser.format_help().lower()


@pytest.mark.parametrize("parser", COMMANDS, ids=lambda parser: parser.prog)
def test_a_checkpoint_may_be_a_word_or_an_option(parser: argparse.ArgumentParser) -> None:
    names = {action.dest for action in parser._actions}
    if "checkpoint" not in names:
        return
    needed = [action for action in parser._actions if action.required and action.option_strings]
    needed += [group._group_actions[0] for group in parser._mutually_exclusive_groups if group.required]
    others = [f"{one.option_strings[0]}={next(iter(one.choices or ['x']))}" for one in needed]
    following = {"text": ["a text"], "overrides": ["a.b=c"]}
    after = next((arguments for name, arguments in following.items() if name in names), [])

    def understood(*arguments: str) -> dict[str, object]:
        options = vars(cli.parse([*parser.prog.split()[1:], *arguments]))
        return {name: value for name, value in options.items() if name not in ("first", *REFERENCES)}

    expected = understood("--checkpoint", "runs/r", *others, *after)
    assert expected["checkpoint"] == "runs/r"
    assert [expected[name] for name in following if name in names] == ([after] if after else [])
    for arguments in (
        ["runs/r", *after, *others],
        [*others, "runs/r", *after],
        ["runs/r", *others, *after],
        [*others, *after, "--checkpoint=runs/r"],
    ):
        assert understood(*arguments) == expected, arguments
    with pytest.raises(UserError, match="name a checkpoint"):
        understood(*others)
    if not after:
        with pytest.raises(UserError, match=r"b: .* takes no such argument"):
            understood("a", "b", *others)


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["sample", "CKPT", "--text", "a"], "prompt", "a"),
        (["fill", "CKPT", "--prompt", "a <mask>"], "passage", "a <mask>"),
        (["search", "CKPT", "--documents", "d", "--text", "a"], "query", "a"),
        (["predict", "CKPT", "--out", "o"], "output", "o"),
        (["evaluate", "CKPT", "--output", "o"], "out", "o"),
        (["tokenizer", "train", "--input", "i", "--output", "o"], "out", "o"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_names_of_other_commands_are_understood(arguments: list[str], name: str, value: str) -> None:
    assert getattr(cli.parse(arguments), name) == value


def test_there_are_commands_that_read_checkpoints() -> None:
    read = {parser.prog for parser in COMMANDS if "checkpoint" in {action.dest for action in parser._actions}}
    checkpoint = {f"gpt1-ds checkpoint {name}" for name in ("inspect", "verify", "export")}
    used = ("sample", "fill", "embed", "search", "evaluate", "predict")
    assert read == {*(f"gpt1-ds {name}" for name in used), *checkpoint}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pretrian"], "did you mean pretrain?"),
        (["tokenizer", "train", "--kind", "bpe"], "--kind: not an option of gpt1-ds tokenizer train; see gpt1-ds tok"),
        (["checkpoint", "show", "x"], "there is no show; choose inspect, verify, average, mirror, fetch, export or"),
        (["completion", "fish"], "there is no fish; choose bash or zsh"),
        (["nothing"], "there is no nothing; see gpt1-ds --help"),
        (["sample", "runs/a", "--promt", "a"], "--promt: not an option of gpt1-ds sample; did you mean --prompt?"),
        (
            ["tokenizer", "train", "--inptu=a", "--out", "b"],
            "--inptu: not an option of gpt1-ds tokenizer train; did you",
        ),
        (["slurm", "statsu"], "did you mean status?"),
        (["checkpoint", "veryfy", "x"], "did you mean verify?"),
        (["pretrain", "--lr", "1e-3"], "--lr: not an option of gpt1-ds pretrain; did you mean optimizer.lr=1e-3?"),
        (["pretrain", "--lr=1e-3"], "did you mean optimizer.lr=1e-3?"),
        (["pretrain", "--micro-batch-size", "8"], "did you mean train.micro_batch=8?"),
        (["pretrain", "--nprocs", "2"], "did you mean --nproc?"),
        (["pretrain", "--steps", "5"], "did you mean train.steps=5?"),
        (["finetune", "--seed=3"], "did you mean run.seed=3?"),
        (["pretrain", "--nothing-like-it"], "see gpt1-ds pretrain --help"),
        (["sample", "runs/r", "--prompt", "x", "--temprature", "1"], "did you mean --temperature?"),
        (["data", "build"], "--input, --tokenizer, --out; see gpt1-ds data build --help"),
        (["checkpoint", "export", "x", "--to", "hff", "--out", "y"], "--to hff: there is no hff; did you mean hf?"),
        (["doctor", "now"], "now: gpt1-ds doctor takes no such argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_arguments_are_answered_with_what_was_meant(gpt1, arguments: list[str], says: str) -> None:  # type: ignore[no-untyped-def]
    assert_refused(gpt1(*arguments), says)
