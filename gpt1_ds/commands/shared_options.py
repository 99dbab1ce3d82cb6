"""The options that several commands take."""

from __future__ import annotations

import argparse

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
    what = "start N local ranks (default: one, or what torchrun or srun starts)"
    parser.add_argument("--nproc", type=int, metavar="N", help=what)


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
