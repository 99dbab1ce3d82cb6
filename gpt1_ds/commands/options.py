"""Options that several commands take."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

FILES = "YAML file or shipped preset; may be given several times, the last wins (default: none)"
CKPT = "a checkpoint folder, or a run folder: its best where it keeps one, else its newest"


def checkpoint(parser: argparse.ArgumentParser) -> None:
    """Adds what every command takes that reads a checkpoint, before its other words."""
    parser.add_argument("first", nargs="?", metavar="CKPT", help=CKPT)
    parser.add_argument("--checkpoint", metavar="CKPT", help="the same, in any place (default: the first word)")


def configuration(parser: argparse.ArgumentParser) -> None:
    """Adds what every command takes that is told a configuration."""
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
        "of the last states mean, max or cls, or of the token rows alone words (default: the checkpoint's, or mean)"
    )
    parser.add_argument("--pooling", choices=("mean", "cls", "max", "words"), help=states)


def training(parser: argparse.ArgumentParser) -> None:
    """Adds what the commands take that train one model."""
    configuration(parser)
    ranks(parser)
    parser.add_argument("--print-config", action="store_true", help="print the resolved configuration and exit")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan and exit")
    values = "a run for each value; given several times, for each combination (default: one run)"
    parser.add_argument("--sweep", action="append", default=[], metavar="KEY=A,B,C", help=values)
    parser.add_argument("--jobs", type=int, metavar="N", help="runs of a sweep at a time (default: 1)")


def study(parser: argparse.ArgumentParser, example: str) -> None:
    """Adds what the commands take that work on a study, which is named before their other words."""
    parser.add_argument("study", metavar="STUDY", help=f"YAML file or shipped preset, like {example}")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="configuration keys of every cell"
    )


def jobs(parser: argparse.ArgumentParser) -> None:
    """Adds what the commands take that run a study."""
    parser.add_argument("--jobs", type=int, metavar="N", help="cells at a time (default: the study's)")


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


def unusable(option: str, path: str | None) -> Iterator[str]:
    """Yields what is wrong with the path of a file that a command will write at its end; nothing for None."""
    if path is not None and (Path(path).is_dir() or not Path(path).parent.is_dir()):
        yield f"{path}: no file can be there; choose another {option}"
