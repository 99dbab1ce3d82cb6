"""The program: `gpt1-ds COMMAND ...`. Heavy imports happen only inside a command; `--help` and `--dry-run` never load
torch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from gpt1_ds import __version__, usage, verb_options
from gpt1_ds.common.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, LaunchError, TrainingError, UserError
from gpt1_ds.common.files import explain
from gpt1_ds.common.text import shown
from gpt1_ds.slurm import faults

Commands: TypeAlias = "argparse._SubParsersAction[usage.Parser]"

STUDY = "finetune study"  # a command of two words
ABOUT = """Train GPT-1 from raw text, fine-tune it on tasks, and use it: the same commands on two CPU cores and on a GPU
cluster, and the same losses however the model is split over processes."""
GROUPS = {
    "your machine": ("doctor",),
    "text": ("tokenizer", "data"),
    "training": ("plan", "pretrain", "finetune", STUDY),
    "trained models": ("sample", "evaluate", "predict", "checkpoint", "report"),
    "clusters and many runs": ("slurm", "scaling", "tracking"),
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
    """Run one command; the exit code: 0 done, 2 wrong usage, config or data, 75 saved and to be continued (in a job
    also when a fault of the world is in the way), else failed.
    """
    everything = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options, rest = _parse(everything)
        if not hasattr(options, "command"):
            _parser().print_help()
            return EXIT_USAGE
        usage.settle(options, rest, everything)
        command: Callable[[argparse.Namespace], int] = options.command
        return command(options)
    except LaunchError as error:
        return _explain(error, error.code if len(error.problems) == 1 and "\n" not in str(error) else EXIT_FAILURE)
    except UserError as error:
        return _explain(error, error.code)
    except TrainingError as error:
        return _explain(error, error.code)
    except KeyboardInterrupt as interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends now: pressing again changes nothing
        return _explain(UserError(": ".join(["interrupted", *map(str, interrupt.args)])), EXIT_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except OSError as error:
        explained = explain(error)
        if explained is None:
            raise
        return _explain(explained, explained.code)


def _explain(error: UserError | TrainingError, code: int) -> int:
    faults.leave_word(error)
    with contextlib.suppress(OSError):  # a job's output may lie on the very disk that is full
        for problem in error.problems if isinstance(error, UserError) else [str(error)]:
            print(f"gpt1-ds: {shown(problem)}", file=sys.stderr)
    return code


def _parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """(options, the words that argparse does not know)."""
    joined = [" ".join(words[:2]), *words[2:]] if list(words[:2]) == STUDY.split() else words
    return _parser().parse_known_args(joined)


def _parser() -> argparse.ArgumentParser:
    """The commands and what they run; gpt1_ds/verb_options.py says what each may be given."""
    style = argparse.RawDescriptionHelpFormatter
    called = "gpt1-ds [-h] [--version] COMMAND ..."
    parser = usage.Parser("gpt1-ds", usage=called, epilog=EXAMPLES, formatter_class=style)
    parser.add_argument("--version", action="version", version=f"gpt1-ds {__version__}", help="print it")
    commands = parser.add_subparsers(prog="gpt1-ds", help=argparse.SUPPRESS)  # listed in groups, below
    _add_commands(commands)
    _add_commands_of_many_runs(commands)
    parser.description = f"{ABOUT}\n{''.join(_listed(commands))}\ngpt1-ds COMMAND --help says more."
    return parser


def _listed(commands: Commands) -> Iterator[str]:
    """The commands, group by group."""
    for group, names in GROUPS.items():
        yield f"\n{group}:\n"
        yield from (f"  {name:<15} {commands.choices[name].description}\n" for name in names)


def _add_commands(commands: Commands) -> None:
    _add(commands, "doctor", "what will and will not work here", _doctor)
    kinds = _group(commands, "tokenizer", "make a tokenizer", "train|import")
    verb_options.tokenizer_train(_add(kinds, "train", "learn a reversible SentencePiece BPE", _tokenizer_train))
    verb_options.tokenizer_import(_add(kinds, "import", "take over GPT-1's own BPE of 2018", _tokenizer_import))
    kinds = _group(commands, "data", "make and check datasets", "build|verify|ngrams")
    about = "tokenize text into Megatron .bin/.idx shards; resumes after an interruption"
    verb_options.data_build(_add(kinds, "build", about, _lazily("verbs:build_data")))
    verb_options.data_verify(_add(kinds, "verify", "checksums, counts and token range", _data_verify))
    about = "held-out cross-entropy of n-gram counting, to hold a model against"
    verb_options.data_ngrams(_add(kinds, "ngrams", about, _data_ngrams))
    about = "memory, time and the best layout of a configuration, without torch or a GPU"
    verb_options.plan(_add(commands, "plan", about, _lazily("plan_verb:plan")))
    about = "train on next-token prediction; resumes by itself in its run folder"
    verb_options.training(_add(commands, "pretrain", about, _lazily("verbs:pretrain")))
    about = "train on a task, from a checkpoint; resumes by itself in its run folder"
    verb_options.training(_add(commands, "finetune", about, _lazily("task_verbs:finetune")))
    about = "fine-tune a table of task x variant x seed; resumes where it was"
    verb_options.study(_add(commands, STUDY, about, _lazily("commands.finetune_study:finetune_study")))
    about = "held-out loss and zero-shot probes of checkpoints, or their task's scores"
    verb_options.evaluate(_add(commands, "evaluate", about, _lazily("verbs:evaluate")))
    verb_options.predict(
        _add(commands, "predict", "a fine-tuned model on a text, a file or a pipe", _lazily("task_verbs:predict"))
    )
    verb_options.sample(_add(commands, "sample", "text from a checkpoint", _lazily("verbs:sample")))
    about = "look at checkpoints, take them elsewhere and bring others in"
    kinds = _group(commands, "checkpoint", about, "inspect|verify|export|import")
    about = "what a checkpoint holds and where it came from"
    verb_options.checkpoint(_add(kinds, "inspect", about, _checkpoint_inspect))
    verb_options.checkpoint(_add(kinds, "verify", "compare every file with the manifest", _checkpoint_verify))
    about = "write a checkpoint as a folder that transformers loads"
    verb_options.checkpoint_export(_add(kinds, "export", about, _lazily("verbs:export_checkpoint")))
    verb_options.checkpoint_import(
        _add(kinds, "import", "make a checkpoint of weights from elsewhere", _lazily("verbs:import_checkpoint"))
    )


def _add_commands_of_many_runs(commands: Commands) -> None:
    kinds = _group(commands, "slurm", "runs as jobs of a cluster", "submit|status|check")
    verb_options.slurm_submit(_add(kinds, "submit", "a run folder, a script, a job", _lazily("slurm_verb:submit")))
    verb_options.slurm_status(
        _add(kinds, "status", "a run's jobs and what it says itself", _lazily("slurm_verb:status"))
    )
    verb_options.slurm_check(
        _add(kinds, "check", "a minute on every node; names bad hosts", _lazily("slurm_verb:check"))
    )
    for name in ("begin", "stage", "node", "end", "line", "health", "verdict"):
        options = getattr(verb_options, f"slurm_{name}")
        options(_add(kinds, name, "a step of launch/env.sh", _lazily(f"slurm_verb:{name}"), hidden=True))
    kinds = _group(
        commands, "scaling", "how loss falls with depth and data", "plan|run|submit|status|collect|fit|predict|report"
    )
    verb_options.scaling(_add(kinds, "plan", "every cell and what it needs", _lazily("commands.scaling_study:plan")))
    verb_options.scaling_run(
        _add(kinds, "run", "the cells that are not done, here", _lazily("commands.scaling_study:run"))
    )
    verb_options.scaling_submit(
        _add(kinds, "submit", "the same, as an array of SLURM jobs", _lazily("commands.scaling_study:submit"))
    )
    verb_options.scaling(_add(kinds, "status", "how far every cell is", _lazily("commands.scaling_study:status")))
    verb_options.scaling(
        _add(kinds, "collect", "run folders -> results.csv", _lazily("commands.scaling_study:collect"))
    )
    verb_options.scaling_fit(
        _add(kinds, "fit", "the law of loss, from results.csv", _lazily("commands.scaling_fit:fit"))
    )
    about = "loss, best size and data needed, from a fit"
    verb_options.scaling_predict(_add(kinds, "predict", about, _lazily("commands.scaling_fit:predict")))
    verb_options.scaling(
        _add(kinds, "report", "figures and tables as one page", _lazily("commands.scaling_study:report"))
    )
    kinds = _group(commands, "tracking", "what runs show in Weights & Biases", "sync")
    verb_options.tracking_sync(_add(kinds, "sync", "upload what runs wrote offline", _tracking_sync))
    verb_options.report(_add(commands, "report", "curves, tables and samples of runs as one page", _report))


def _add(
    commands: Commands, name: str, about: str, run: Callable[[argparse.Namespace], int], hidden: bool = False
) -> argparse.ArgumentParser:
    if hidden:
        command = commands.add_parser(name, description=about)  # argparse lists those that have a help text
    else:
        command = commands.add_parser(name, description=about, help=about)
    command.set_defaults(command=run, parser=command)
    return command


def _group(commands: Commands, name: str, about: str, kinds: str) -> Commands:
    """A command of several kinds, each with options of its own."""
    command = commands.add_parser(name, description=about)
    return command.add_subparsers(title="commands", required=True, metavar=kinds)


def _lazily(where: str) -> Callable[[argparse.Namespace], int]:
    """The function `module:name` of this package, imported when it is called."""

    def run(options: argparse.Namespace) -> int:
        module, _, name = where.partition(":")
        return int(getattr(importlib.import_module(f"gpt1_ds.{module}"), name)(options))

    return run


def _doctor(options: argparse.Namespace) -> int:
    from gpt1_ds.parallel.doctor import report

    return report()


def _tokenizer_train(options: argparse.Namespace) -> int:
    from gpt1_ds.common import progress
    from gpt1_ds.common.units import count
    from gpt1_ds.data.sentencepiece_train import train

    with progress.bar(unit=lambda letters: f"{count(letters)} letters") as show:
        tokenizer = train(options.input, options.out, options.vocab_size, options.unwrap, show=show)
    print(f"{options.out}: {tokenizer.vocab_size} pieces")
    return 0


def _tokenizer_import(options: argparse.Namespace) -> int:
    from gpt1_ds.data.openai_bpe import import_openai

    tokenizer = import_openai(options.vocab, options.merges, options.out)
    print(f"{options.out}: {tokenizer.vocab_size} ids")
    return 0


def _data_verify(options: argparse.Namespace) -> int:
    from gpt1_ds.common import progress
    from gpt1_ds.data.verify import verify

    with progress.bar(unit="{:.0f} shards".format) as show:
        splits = verify(options.folder, show)
    for name, split in splits.items():
        print(f"{options.folder}: {shown(name)}: {split.tokens} tokens, {split.documents} documents: as built")
    return 0


def _data_ngrams(options: argparse.Namespace) -> int:
    from gpt1_ds.data.ngrams import write_scores

    for score in write_scores(options.folder, options.orders):
        print(
            f"{score.order}-gram: held-out loss {score.loss:.4f} nats per token, perplexity {score.perplexity:.2f}, "
            f"{score.bits_per_byte:.4f} bits per byte"
        )
    return 0


def _checkpoint_inspect(options: argparse.Namespace) -> int:
    from gpt1_ds.checkpoint.inspect import inspect

    return inspect(Path(options.checkpoint))


def _checkpoint_verify(options: argparse.Namespace) -> int:
    from gpt1_ds.checkpoint.inspect import verify

    return verify(Path(options.checkpoint))


def _tracking_sync(options: argparse.Namespace) -> int:
    from gpt1_ds.tracking.sync import sync

    return sync([Path(run) for run in options.runs])


def _report(options: argparse.Namespace) -> int:
    from gpt1_ds.report.page import write_report

    print(write_report([Path(run) for run in options.runs], Path(options.out) if options.out else None))
    return 0
