"""`completion`: a script that completes commands, options, presets and the names of keys in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from gpt1_ds.commands.parser import Command, Group, Parser

# The arguments before the cursor, and what the shell offers, per shell. In between, the scripts are the same.
BEGINNINGS = {
    "bash": """# Load it with: source <(gpt1-ds completion bash)
_gpt1_ds() {
  local command='' previous='' found='' keys='' word current=${COMP_WORDS[COMP_CWORD]}
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do""",
    "zsh": """#compdef gpt1-ds
# Load it after compinit with: source <(gpt1-ds completion zsh)
_gpt1_ds() {
  local command='' previous='' found='' keys='' word current=${words[CURRENT]}
  for word in "${(@)words[2,CURRENT-1]}"; do""",
}
ENDINGS = {
    "bash": """  mapfile -t COMPREPLY < <(compgen -W "$found $keys" -- "$current")
  if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace 2>/dev/null || true; fi
}
complete -o default -F _gpt1_ds gpt1-ds""",  # default: file names, where nothing matches
    "zsh": """  compadd -- ${=found}
  compadd -S '' -- ${=keys}
  _files
}
compdef _gpt1_ds gpt1-ds""",
}


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(BEGINNINGS), help="load it with: source <(gpt1-ds completion bash)")


def _run(options: argparse.Namespace) -> int:
    from gpt1_ds.config import Config
    from gpt1_ds.config.presets import presets
    from gpt1_ds.config.values import keys_of

    print("\n".join(_script(options.shell, options.program, presets(), keys_of(Config))))
    return 0


def _script(
    shell: str, program: Sequence[Command | Group], presets: Sequence[str], keys: Sequence[str]
) -> Iterator[str]:
    """Yields lines of the script; in it, a command is its words with a space before each."""
    parsers = dict(_parsers(program))
    prefixes = sorted({""} | {"".join(f" {word}" for word in name.split()[:n]) for name in parsers for n in (1, 2)})
    yield BEGINNINGS[shell]
    yield f'    case "$command $word" in {_patterns(prefixes[1:])}) command="$command $word" ;; esac'
    yield "    previous=$word"
    yield "  done"
    yield '  case "$command $previous" in'
    for values, names in _values(parsers, presets).items():
        yield f'    {_patterns(names)}) found="{values}" ;;'
    yield '    *) case "$command" in'
    for prefix in prefixes:
        yield f'      "{prefix}") found="{" ".join(_words(prefix, parsers))}" ;;'
    yield "    esac"
    takes_keys = [f" {name}" for name, parser in parsers.items() if any(x.dest == "overrides" for x in _shown(parser))]
    yield '    case "${current:+$command}" in'  # all keys would hide the options
    yield f'      {_patterns(takes_keys)}) keys="{" ".join(f"{key}=" for key in keys)}" ;;'
    yield "    esac ;;"
    yield "  esac"
    yield ENDINGS[shell]


def _parsers(program: Sequence[Command | Group]) -> Iterator[tuple[str, Parser]]:
    """Yields (name, parser) of every command that is not hidden."""
    for member in program:
        group = f"{member.name} " if isinstance(member, Group) else ""
        for command in member.commands if isinstance(member, Group) else (member,):
            if not command.hidden:
                parser = Parser()
                command.add_options(parser)
                yield group + command.name, parser


def _values(parsers: dict[str, Parser], presets: Sequence[str]) -> dict[str, list[str]]:
    """Returns values -> the options, each with its command, that take one of them; "" -> those that take any value."""
    found: dict[str, list[str]] = {}
    for name, parser in parsers.items():
        for action in _shown(parser):
            if action.option_strings and action.nargs != 0:
                values = " ".join(map(str, presets if action.dest == "config" else action.choices or ()))
                found.setdefault(values, []).extend(f" {name} {option}" for option in action.option_strings)
    return found


def _shown(parser: Parser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.help != argparse.SUPPRESS]


def _words(prefix: str, parsers: dict[str, Parser]) -> Iterator[str]:
    """Yields what may follow the command `prefix`: names of commands, options, and values of a choice."""
    longer = [f" {name}" for name in parsers if f" {name}".startswith(f"{prefix} ")]
    yield from dict.fromkeys(name.removeprefix(f"{prefix} ").split()[0] for name in longer)
    for action in _shown(parsers[prefix.strip()]) if prefix.strip() in parsers else ():
        yield from action.option_strings or map(str, action.choices or ())


def _patterns(names: Sequence[str]) -> str:
    return "|".join(f'"{name}"' for name in names)


COMMAND = Command(
    "completion", "a script that completes commands, options and presets in your shell", _run, _add_options
)
