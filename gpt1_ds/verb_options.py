"""What each command may be given behind its name; one function adds the options of one command."""

from __future__ import annotations

import argparse

TEXTS = "files, folders or python-docs"
FILES = "YAML file or shipped preset; may be given several times, the last wins (default: none)"
UNWRAP = "join hard-wrapped lines inside paragraphs"
NPROC = "start N local ranks (default: one, or what torchrun or srun starts)"
JOBS = "cells at a time (default: the study's)"
CKPT = "a checkpoint folder, or a run folder: its best where it keeps one, else its newest"


def checkpoint(command: argparse.ArgumentParser) -> None:
    """Of every command that reads a checkpoint, before its other words."""
    command.add_argument("first", nargs="?", metavar="CKPT", help=CKPT)
    command.add_argument("--checkpoint", metavar="CKPT", help="the same, in any place (default: the first word)")


def configuration(command: argparse.ArgumentParser) -> None:
    """Of every command that is told a configuration."""
    command.add_argument("-c", "--config", action="append", default=[], metavar="FILE", help=FILES)
    command.add_argument("overrides", nargs="*", metavar="key=value", help="configuration keys, like model.layers=12")
    command.add_argument("--local_rank", "--local-rank", help=argparse.SUPPRESS)  # DeepSpeed's launcher passes it


def tokenizer_train(command: argparse.ArgumentParser) -> None:
    command.add_argument("--input", nargs="+", required=True, metavar="PATH", help=TEXTS)
    command.add_argument("--out", required=True, metavar="DIR", help="a new folder for the tokenizer")
    command.add_argument(
        "--vocab-size", type=int, default=40000, metavar="N", help="pieces to learn (default: %(default)s)"
    )
    command.add_argument("--unwrap", action="store_true", help=UNWRAP)


def tokenizer_import(command: argparse.ArgumentParser) -> None:
    command.add_argument("--openai-gpt", action="store_true", required=True, help="the kind of the files")
    command.add_argument("--vocab", required=True, metavar="encoder.json", help="its pieces and their numbers")
    command.add_argument("--merges", required=True, metavar="vocab.bpe", help="its merges, in their order")
    command.add_argument("--out", required=True, metavar="DIR", help="a new folder for the tokenizer")


def data_build(command: argparse.ArgumentParser) -> None:
    command.add_argument("--input", nargs="+", required=True, metavar="PATH", help=TEXTS)
    command.add_argument("--tokenizer", required=True, metavar="DIR", help="what tokenizer train or import has made")
    command.add_argument("--out", required=True, metavar="DIR", help="the folder of the dataset")
    command.add_argument("--workers", type=int, metavar="N", help="processes (default: one per core)")
    held_out = "part of the documents that is held out (default: %(default)s)"
    command.add_argument("--validation", type=float, default=0.01, metavar="F", help=held_out)
    command.add_argument("--unwrap", action="store_true", help=UNWRAP)


def data_verify(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="DIR", help="a dataset, as data build makes it")


def data_ngrams(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="DIR", help="a dataset, as data build makes it")
    orders = "the longest n-grams that are counted (default: %(default)s)"
    command.add_argument("--orders", type=int, default=3, choices=(1, 2, 3), help=orders)


def plan(command: argparse.ArgumentParser) -> None:
    configuration(command)
    world = "ranks to plan for (default: tensor x pipeline; with --search, those of one node)"
    command.add_argument("--world", type=int, metavar="N", help=world)
    command.add_argument("--memory", type=float, metavar="GIB", help="of one rank (default: the machine's)")
    command.add_argument("--search", action="store_true", help="rank all legal layouts, and say why the others lose")
    best = "with --search: write the best layout there, for -c (default: nothing is written)"
    command.add_argument("--out", metavar="FILE", help=best)
    command.add_argument("--calibrate", action="store_true", help="measure this machine first, in a minute or two")
    machine = "h100, h200, a100, cpu or a file (default: $GPT1_DS_MACHINE, else what --calibrate measured, else h100)"
    command.add_argument("--machine", metavar="NAME", help=machine)
    command.add_argument("--json", action="store_true", help="print one JSON object in the place of text")


def training(command: argparse.ArgumentParser) -> None:
    configuration(command)
    command.add_argument("--nproc", type=int, metavar="N", help=NPROC)
    command.add_argument("--print-config", action="store_true", help="print the resolved configuration and exit")
    command.add_argument("--dry-run", action="store_true", help="check everything, print the plan and exit")


def study(command: argparse.ArgumentParser) -> None:
    command.add_argument("study", metavar="STUDY", help="YAML file or shipped preset, like finetune/study/books")
    command.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="configuration keys of every cell"
    )
    command.add_argument("--jobs", type=int, metavar="N", help=JOBS)
    command.add_argument("--dry-run", action="store_true", help="check everything, list the cells and exit")


def scaling(command: argparse.ArgumentParser) -> None:
    command.add_argument("study", metavar="STUDY", help="YAML file or shipped preset, like scaling/books")
    command.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="configuration keys of every cell"
    )


def scaling_run(command: argparse.ArgumentParser) -> None:
    scaling(command)
    command.add_argument("--jobs", type=int, metavar="N", help=JOBS)


def scaling_submit(command: argparse.ArgumentParser) -> None:
    scaling_run(command)
    command.add_argument("--dry-run", action="store_true", help="print files and commands and exit")


def evaluate(command: argparse.ArgumentParser) -> None:
    checkpoint(command)
    configuration(command)
    command.add_argument("--out", metavar="FILE", help="where the result is merged in (default: the run's eval.json)")
    command.add_argument(
        "--every", action="store_true", help="all checkpoints of a run folder that FILE does not have yet"
    )
    points = "with --every: N of them, evenly on a log scale of steps (default: all)"
    command.add_argument("--points", type=int, metavar="N", help=points)
    command.add_argument("--nproc", type=int, metavar="N", help=NPROC)


def predict(command: argparse.ArgumentParser) -> None:
    checkpoint(command)
    command.add_argument(
        "text", nargs="*", metavar="TEXT", help="one example: its text, its texts, or text and choices"
    )
    command.add_argument("--input", metavar="FILE", help="an example a line (default: standard input)")
    command.add_argument("--output", metavar="FILE", help="a line for each of them (default: standard output)")
    formats = (
        "text: the line is the text; tsv: text, text2, choices; jsonl: these as keys (default: what it looks like)"
    )
    command.add_argument("--format", choices=("auto", "text", "tsv", "jsonl"), default="auto", help=formats)
    scores = "write JSON lines with the probability of every class, as for input and --output of that kind"
    command.add_argument("--scores", action="store_true", help=scores)


def sample(command: argparse.ArgumentParser) -> None:
    checkpoint(command)
    command.add_argument("--prompt", required=True, metavar="TEXT", help="what the text begins with")
    command.add_argument("--tokens", type=int, default=100, metavar="N", help="tokens to add (default: %(default)s)")
    temperature = "how freely tokens are drawn; 0 takes the likeliest one (default: %(default)s)"
    command.add_argument("--temperature", type=float, default=0.8, metavar="T", help=temperature)
    top_k = "draw from the K likeliest; 0: all (default: %(default)s)"
    command.add_argument("--top-k", type=int, default=0, metavar="K", help=top_k)
    top_p = "draw from the likeliest ones that make up the probability P; 1: all (default: %(default)s)"
    command.add_argument("--top-p", type=float, default=1.0, metavar="P", help=top_p)
    command.add_argument("--seed", type=int, default=0, metavar="S", help="of the draws (default: %(default)s)")


def checkpoint_export(command: argparse.ArgumentParser) -> None:
    checkpoint(command)
    command.add_argument("--to", choices=("hf",), required=True, help="hf: a model of transformers and its tokenizer")
    command.add_argument("--out", required=True, metavar="DIR", help="a new folder for it")


def checkpoint_import(command: argparse.ArgumentParser) -> None:
    origins = "hf: a folder of OpenAIGPTLMHeadModel or OpenAIGPTDoubleHeadsModel; openai: the release of 2018"
    command.add_argument("--from", dest="origin", choices=("hf", "openai"), required=True, help=origins)
    command.add_argument("--source", required=True, metavar="DIR", help="the folder that holds the weights")
    command.add_argument("--out", required=True, metavar="CKPT", help="a new folder for the checkpoint")
    command.add_argument("--tokenizer", metavar="DIR", help="the model's (default: what the source folder holds)")
    command.add_argument("--unverified", action="store_true", help="openai: take files that are not the released ones")


def slurm_submit(command: argparse.ArgumentParser) -> None:
    command.add_argument("what", metavar="COMMAND", help="pretrain or finetune")
    configuration(command)
    command.add_argument("--dry-run", action="store_true", help="print all files and the command, write nothing")


def slurm_status(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="a run folder")


def slurm_check(command: argparse.ArgumentParser) -> None:
    configuration(command)


def slurm_health(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder")


def slurm_verdict(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder")
    command.add_argument("hosts", nargs="+")


def _job(command: argparse.ArgumentParser) -> None:
    command.add_argument("--job", required=True)
    command.add_argument("--restart", default="0", help="times SLURM has requeued it")
    command.add_argument("--faults", type=int, default=0, help="jobs before it, in a row, that a fault ended")
    command.add_argument("--avoid", default="", help="nodes that they were on")
    command.add_argument("--pause", type=int, required=True, help="seconds before another try, after the first fault")
    command.add_argument("--max-tries", type=int, required=True)
    command.add_argument(
        "--poor-tries", type=int, required=True, help="jobs in a row that may cost more than they gain"
    )


def slurm_begin(command: argparse.ArgumentParser) -> None:
    _job(command)
    command.add_argument("--world", type=int, required=True)
    command.add_argument("words", nargs=argparse.REMAINDER)


def slurm_stage(command: argparse.ArgumentParser) -> None:
    command.add_argument("--to", required=True)
    command.add_argument("words", nargs=argparse.REMAINDER)


def slurm_end(command: argparse.ArgumentParser) -> None:
    command.add_argument("run")
    _job(command)
    command.add_argument("--status", type=int, required=True, help="exit status of the ranks' launcher")


def slurm_node(command: argparse.ArgumentParser) -> None:
    command.add_argument("--ranks", type=int, required=True, help="ranks of this node")
    command.add_argument("words", nargs=argparse.REMAINDER)


def slurm_line(command: argparse.ArgumentParser) -> None:
    command.add_argument("manifest")
    command.add_argument("number", type=int)


def tracking_sync(command: argparse.ArgumentParser) -> None:
    command.add_argument("runs", nargs="+", metavar="RUN", help="run folders")


def scaling_fit(command: argparse.ArgumentParser) -> None:
    command.add_argument("study", nargs="?", metavar="STUDY", help="a study, or a folder that holds its results.csv")
    points = "points from elsewhere: columns n,d,loss[,u][,held_out] (default: those of STUDY)"
    command.add_argument("--from-csv", metavar="FILE", help=points)
    command.add_argument(
        "--out", metavar="DIR", help="where fit.json and predictions.csv go (default: the study's folder)"
    )
    forms = "chinchilla (default): E + A/N^alpha + B/D^beta; gadre: alpha = beta; repeated: tokens seen again; "
    forms += "power_n, power_d: one axis"
    command.add_argument("--form", default="chinchilla", metavar="FORM", help=forms)
    losses = "huber of log loss, or l2 (default: huber; gadre: l2)"
    command.add_argument("--loss", metavar="LOSS", help=losses)
    given = "with --form repeated: A=..,B=..,E=..,alpha=..,beta=.. are taken as given; with R_D=..,R_N=.. also, nothing"
    command.add_argument(
        "--at", metavar="k=v,...", help=f"{given} is fitted and the objective there is told (default: all is fitted)"
    )
    command.add_argument(
        "--draws", type=int, default=1000, metavar="N", help="of the bootstrap; 0: no intervals (default: %(default)s)"
    )
    command.add_argument("--seed", type=int, default=0, metavar="S", help="of the bootstrap (default: %(default)s)")


def scaling_predict(command: argparse.ArgumentParser) -> None:
    command.add_argument("study", nargs="?", metavar="STUDY", help="a study, or a folder that holds its fit.json")
    command.add_argument("--fit", metavar="FILE", help="a fit.json (default: that of STUDY)")
    params = "parameters, in the fit's convention, like 117M (default: open)"
    command.add_argument("--params", metavar="N", help=params)
    command.add_argument("--tokens", metavar="D", help="tokens trained on, like 2B (default: open)")
    unique = "unique ones among them: is it worth another epoch? (default: all)"
    command.add_argument("--unique", metavar="U", help=unique)
    flops = "compute, 6ND: the best N and D for it, or the D or N left open (default: 6ND of both)"
    command.add_argument("--flops", metavar="C", help=flops)
    target = "with --params: tokens to reach L nats per token (default: not asked)"
    command.add_argument("--target-loss", type=float, metavar="L", help=target)
    command.add_argument("--json", action="store_true", help="print one JSON object in the place of text")


def report(command: argparse.ArgumentParser) -> None:
    command.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    command.add_argument("--out", metavar="DIR", help="where the page goes (default: the first run's folder)")
