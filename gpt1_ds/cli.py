"""The program: `gpt1-ds VERB ...`. Heavy imports happen only inside a verb; `--help` and `--dry-run` never load
torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gpt1_ds import __version__
from gpt1_ds.common.errors import EXIT_FAILURE, EXIT_USAGE, LaunchError, TrainingError, UserError

EXAMPLES = """examples:
  gpt1-ds doctor
  gpt1-ds tokenizer train --input BOOKS --out tok --vocab-size 8000
  gpt1-ds data build --input BOOKS --tokenizer tok --out data/books
  gpt1-ds pretrain -c pretrain/books_cpu data.path=data/books --nproc 2
  gpt1-ds sample --checkpoint runs/books_cpu --prompt "It was"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; the exit code: 0 done, 2 wrong usage, config or data, 75 saved and to be continued, else failed."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if not hasattr(options, "verb"):
        parser.print_help()
        return EXIT_USAGE
    try:
        words = _overrides(rest, list(sys.argv[1:] if arguments is None else arguments), hasattr(options, "overrides"))
        options.overrides = [*getattr(options, "overrides", []), *words]
        verb: Callable[[argparse.Namespace], int] = options.verb
        return verb(options)
    except LaunchError as error:
        return _explain(error, EXIT_USAGE if len(error.problems) == 1 and "\n" not in str(error) else EXIT_FAILURE)
    except UserError as error:
        return _explain(error, EXIT_USAGE)
    except TrainingError as error:
        return _explain(UserError(str(error)), EXIT_FAILURE)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except OSError as error:
        from gpt1_ds.common.files import explain

        explained = explain(error)
        if explained is None:
            raise
        return _explain(explained, EXIT_USAGE)


def _explain(error: UserError, code: int) -> int:
    for problem in error.problems:
        print(f"gpt1-ds: {problem}", file=sys.stderr)
    return code


def _overrides(rest: Sequence[str], everything: Sequence[str], accepted: bool) -> list[str]:
    """The `key=value` words among what argparse did not know; anything else is answered with the right form."""
    problems, words = [], []
    for word in rest:
        if not word.startswith("-") and accepted:
            words.append(word)
        elif word.startswith("--") and "." in word and accepted:
            key, behind = word.lstrip("-"), everything[everything.index(word) + 1 :]
            value = behind[0] if behind and not behind[0].startswith("-") else "VALUE"
            problems.append(f"{word}: keys are written without dashes: {key if '=' in key else f'{key}={value}'}")
        else:
            problems.append(f"{word}: not an option of this verb; see gpt1-ds VERB --help")
    UserError.raise_all(problems)
    return words


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("gpt1-ds", description=__doc__, epilog=EXAMPLES, formatter_class=style)
    parser.add_argument("--version", action="version", version=f"gpt1-ds {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    _add(verbs, "doctor", "what will and will not work here", _doctor)
    _add_tokenizer(verbs)
    _add_data(verbs)
    verb = _add(verbs, "plan", "parameters, operations and layout of a configuration, without torch", _plan)
    _add_config_options(verb)
    verb.add_argument("--world", type=int, metavar="N", help="ranks to plan for")
    verb = _add(verbs, "pretrain", "train on next-token prediction; goes on by itself in its run folder", _pretrain)
    _add_config_options(verb)
    verb.add_argument("--nproc", type=int, metavar="N", help="start N local ranks")
    verb.add_argument("--print-config", action="store_true", help="print the resolved configuration and leave")
    verb.add_argument("--dry-run", action="store_true", help="check everything, print the plan and leave")
    verb = _add(verbs, "evaluate", "held-out loss of a checkpoint", _evaluate)
    _add_config_options(verb)
    verb.add_argument("--checkpoint", required=True, metavar="CKPT", help="a run folder or a checkpoint folder")
    verb.add_argument("--out", metavar="FILE", help="where the result is merged in (default: the run's eval.json)")
    verb.add_argument("--nproc", type=int, metavar="N", help="start N local ranks")
    _add_sample(verbs)
    _add_checkpoint(verbs)
    verb = _add(verbs, "report", "curves, tables and samples of runs as one page", _report)
    verb.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    verb.add_argument("--out", metavar="DIR", help="where the page goes (default: the first run's folder)")
    return parser


def _add(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    help_text: str,
    run: Callable[[argparse.Namespace], int] | None,
) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=help_text, description=help_text)
    if run is not None:
        verb.set_defaults(verb=run)
    return verb


def _add_config_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("-c", "--config", action="append", default=[], metavar="FILE", help="YAML file or shipped preset")
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="configuration keys, like model.layers=12")
    verb.add_argument("--local_rank", "--local-rank", help=argparse.SUPPRESS)  # DeepSpeed's launcher passes it


def _add_tokenizer(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    kinds = _add(verbs, "tokenizer", "make a tokenizer", None).add_subparsers(required=True, metavar="train|import")
    train = _add(kinds, "train", "learn a reversible SentencePiece BPE", _tokenizer_train)
    train.add_argument("--input", nargs="+", required=True, metavar="PATH", help="files, folders or python-docs")
    train.add_argument("--out", required=True, metavar="DIR")
    train.add_argument("--vocab-size", type=int, default=40000, metavar="N")
    train.add_argument("--unwrap", action="store_true", help="join hard-wrapped lines inside paragraphs")
    imported = _add(kinds, "import", "take over GPT-1's own BPE of 2018", _tokenizer_import)
    imported.add_argument("--openai-gpt", action="store_true", required=True, help="the kind of the files")
    imported.add_argument("--vocab", required=True, metavar="encoder.json")
    imported.add_argument("--merges", required=True, metavar="vocab.bpe")
    imported.add_argument("--out", required=True, metavar="DIR")


def _add_data(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    kinds = _add(verbs, "data", "make and check datasets", None).add_subparsers(
        required=True, metavar="build|verify|ngrams"
    )
    build = _add(
        kinds, "build", "tokenize text into Megatron .bin/.idx shards; goes on after an interruption", _data_build
    )
    build.add_argument("--input", nargs="+", required=True, metavar="PATH", help="files, folders or python-docs")
    build.add_argument("--tokenizer", required=True, metavar="DIR")
    build.add_argument("--out", required=True, metavar="DIR")
    build.add_argument("--workers", type=int, metavar="N", help="processes (default: one per core)")
    build.add_argument("--validation", type=float, default=0.01, metavar="F", help="share of documents held out")
    build.add_argument("--unwrap", action="store_true", help="join hard-wrapped lines inside paragraphs")
    verify = _add(kinds, "verify", "checksums, counts and token range", _data_verify)
    verify.add_argument("folder", metavar="DIR")
    ngrams = _add(kinds, "ngrams", "held-out cross-entropy of n-gram counting, to hold a model against", _data_ngrams)
    ngrams.add_argument("folder", metavar="DIR")
    ngrams.add_argument("--orders", type=int, default=3, choices=(1, 2, 3))


def _add_sample(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = _add(verbs, "sample", "text from a checkpoint", _sample)
    verb.add_argument("--checkpoint", required=True, metavar="CKPT", help="a run folder or a checkpoint folder")
    verb.add_argument("--prompt", required=True, metavar="TEXT")
    verb.add_argument("--tokens", type=int, default=100, metavar="N")
    verb.add_argument("--temperature", type=float, default=0.8, metavar="T", help="0 takes the likeliest token")
    verb.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from the K likeliest; 0: all")
    verb.add_argument("--top-p", type=float, default=1.0, metavar="P", help="draw from the likeliest mass P; 1: all")
    verb.add_argument("--seed", type=int, default=0, metavar="S")


def _add_checkpoint(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = "look at checkpoints, take them elsewhere and bring others in"
    kinds = _add(verbs, "checkpoint", about, None).add_subparsers(required=True, metavar="inspect|verify|export|import")
    for name, text, run in (
        ("inspect", "what a checkpoint holds and where it came from", _checkpoint_inspect),
        ("verify", "compare every file with the manifest", _checkpoint_verify),
    ):
        verb = _add(kinds, name, text, run)
        verb.add_argument("checkpoint", metavar="CKPT", help="a run folder or a checkpoint folder")
    verb = _add(kinds, "export", "write a checkpoint as a folder that transformers loads", _checkpoint_export)
    verb.add_argument("checkpoint", metavar="CKPT", help="a run folder or a checkpoint folder")
    verb.add_argument("--to", choices=("hf",), required=True, help="hf: OpenAIGPTLMHeadModel and its tokenizer")
    verb.add_argument("--out", required=True, metavar="DIR")
    verb = _add(kinds, "import", "make a checkpoint of weights from elsewhere", _checkpoint_import)
    origins = "hf: a folder of OpenAIGPTLMHeadModel or OpenAIGPTDoubleHeadsModel; openai: the release of 2018"
    verb.add_argument("--from", dest="origin", choices=("hf", "openai"), required=True, help=origins)
    verb.add_argument("--source", required=True, metavar="DIR")
    verb.add_argument("--out", required=True, metavar="CKPT")
    verb.add_argument("--tokenizer", metavar="DIR", help="the model's (default: what the source folder holds)")
    verb.add_argument("--unverified", action="store_true", help="openai: take files that are not the released ones")


def _doctor(options: argparse.Namespace) -> int:
    from gpt1_ds.parallel.doctor import report

    return report()


def _tokenizer_train(options: argparse.Namespace) -> int:
    from gpt1_ds.data.sentencepiece_train import train

    tokenizer = train(options.input, options.out, options.vocab_size, options.unwrap)
    print(f"{options.out}: {tokenizer.vocab_size} pieces")
    return 0


def _tokenizer_import(options: argparse.Namespace) -> int:
    from gpt1_ds.data.openai_bpe import import_openai

    tokenizer = import_openai(options.vocab, options.merges, options.out)
    print(f"{options.out}: {tokenizer.vocab_size} ids")
    return 0


def _data_build(options: argparse.Namespace) -> int:
    from gpt1_ds.verbs import build_data

    return build_data(options)


def _data_verify(options: argparse.Namespace) -> int:
    from gpt1_ds.data.verify import verify

    for name, split in verify(options.folder).items():
        print(f"{options.folder}: {name}: {split.tokens} tokens, {split.documents} documents: as built")
    return 0


def _data_ngrams(options: argparse.Namespace) -> int:
    from gpt1_ds.data.ngrams import write_scores

    for score in write_scores(options.folder, options.orders):
        print(
            f"{score.order}-gram: held-out loss {score.loss:.4f} nats per token, perplexity {score.perplexity:.2f}, "
            f"{score.bits_per_byte:.4f} bits per byte"
        )
    return 0


def _plan(options: argparse.Namespace) -> int:
    from gpt1_ds.verbs import plan

    return plan(options)


def _pretrain(options: argparse.Namespace) -> int:
    from gpt1_ds.verbs import pretrain

    return pretrain(options)


def _evaluate(options: argparse.Namespace) -> int:
    from gpt1_ds.verbs import evaluate

    return evaluate(options)


def _sample(options: argparse.Namespace) -> int:
    from gpt1_ds.verbs import sample

    return sample(options)


def _checkpoint_inspect(options: argparse.Namespace) -> int:
    from gpt1_ds.checkpoint.inspect import inspect

    return inspect(Path(options.checkpoint))


def _checkpoint_verify(options: argparse.Namespace) -> int:
    from gpt1_ds.checkpoint.inspect import verify

    return verify(Path(options.checkpoint))


def _checkpoint_export(options: argparse.Namespace) -> int:
    from gpt1_ds.verbs import export_checkpoint

    return export_checkpoint(options)


def _checkpoint_import(options: argparse.Namespace) -> int:
    from gpt1_ds.verbs import import_checkpoint

    return import_checkpoint(options)


def _report(options: argparse.Namespace) -> int:
    from gpt1_ds.report.page import write_report

    print(write_report([Path(run) for run in options.runs], Path(options.out) if options.out else None))
    return 0
