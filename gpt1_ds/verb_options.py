"""What each command may be given behind its name; one function adds the options of one command."""

from __future__ import annotations

import argparse

TEXTS = "files, folders or python-docs"
FILES = "YAML file or shipped preset; may be given several times, the last wins (default: none)"
UNWRAP = "join hard-wrapped lines inside paragraphs"
NPROC = "start N local ranks (default: one, or what torchrun or srun starts)"
JOBS = "cells at a time (default: the study's)"
CKPT = "a checkpoint folder, or a run folder: its best where it keeps one, else its newest"


def checkpoint(verb: argparse.ArgumentParser) -> None:
    """Of every command that reads a checkpoint, before its other words."""
    verb.add_argument("first", nargs="?", metavar="CKPT", help=CKPT)
    verb.add_argument("--checkpoint", metavar="CKPT", help="the same, in any place (default: the first word)")


def configuration(verb: argparse.ArgumentParser) -> None:
    """Of every verb that is told a configuration."""
    verb.add_argument("-c", "--config", action="append", default=[], metavar="FILE", help=FILES)
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="configuration keys, like model.layers=12")
    verb.add_argument("--local_rank", "--local-rank", help=argparse.SUPPRESS)  # DeepSpeed's launcher passes it


def tokenizer_train(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--input", nargs="+", required=True, metavar="PATH", help=TEXTS)
    verb.add_argument("--out", required=True, metavar="DIR", help="a new folder for the tokenizer")
    verb.add_argument(
        "--vocab-size", type=int, default=40000, metavar="N", help="pieces to learn (default: %(default)s)"
    )
    verb.add_argument("--unwrap", action="store_true", help=UNWRAP)


def tokenizer_import(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--openai-gpt", action="store_true", required=True, help="the kind of the files")
    verb.add_argument("--vocab", required=True, metavar="encoder.json", help="its pieces and their numbers")
    verb.add_argument("--merges", required=True, metavar="vocab.bpe", help="its merges, in their order")
    verb.add_argument("--out", required=True, metavar="DIR", help="a new folder for the tokenizer")


def data_build(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--input", nargs="+", required=True, metavar="PATH", help=TEXTS)
    verb.add_argument("--tokenizer", required=True, metavar="DIR", help="what tokenizer train or import has made")
    verb.add_argument("--out", required=True, metavar="DIR", help="the folder of the dataset")
    verb.add_argument("--workers", type=int, metavar="N", help="processes (default: one per core)")
    held_out = "part of the documents that is held out (default: %(default)s)"
    verb.add_argument("--validation", type=float, default=0.01, metavar="F", help=held_out)
    verb.add_argument("--unwrap", action="store_true", help=UNWRAP)


def data_verify(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("folder", metavar="DIR", help="a dataset, as data build makes it")


def data_ngrams(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("folder", metavar="DIR", help="a dataset, as data build makes it")
    orders = "the longest n-grams that are counted (default: %(default)s)"
    verb.add_argument("--orders", type=int, default=3, choices=(1, 2, 3), help=orders)


def plan(verb: argparse.ArgumentParser) -> None:
    configuration(verb)
    world = "ranks to plan for (default: tensor x pipeline; with --search, those of one node)"
    verb.add_argument("--world", type=int, metavar="N", help=world)
    verb.add_argument("--memory", type=float, metavar="GIB", help="of one rank (default: the machine's)")
    verb.add_argument("--search", action="store_true", help="rank all legal layouts, and say why the others lose")
    best = "with --search: write the best layout there, for -c (default: nothing is written)"
    verb.add_argument("--out", metavar="FILE", help=best)
    verb.add_argument("--calibrate", action="store_true", help="measure this machine first, in a minute or two")
    machine = "h100, h200, a100, cpu or a file (default: $GPT1_DS_MACHINE, else what --calibrate measured, else h100)"
    verb.add_argument("--machine", metavar="NAME", help=machine)
    verb.add_argument("--json", action="store_true", help="print one JSON object in the place of text")


def training(verb: argparse.ArgumentParser) -> None:
    configuration(verb)
    verb.add_argument("--nproc", type=int, metavar="N", help=NPROC)
    verb.add_argument("--print-config", action="store_true", help="print the resolved configuration and exit")
    verb.add_argument("--dry-run", action="store_true", help="check everything, print the plan and exit")


def study(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("study", metavar="STUDY", help="YAML file or shipped preset, like finetune/study/books")
    verb.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="configuration keys of every cell")
    verb.add_argument("--jobs", type=int, metavar="N", help=JOBS)
    verb.add_argument("--dry-run", action="store_true", help="check everything, list the cells and exit")


def scaling(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("study", metavar="STUDY", help="YAML file or shipped preset, like scaling/books")
    verb.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="configuration keys of every cell")


def scaling_run(verb: argparse.ArgumentParser) -> None:
    scaling(verb)
    verb.add_argument("--jobs", type=int, metavar="N", help=JOBS)


def scaling_submit(verb: argparse.ArgumentParser) -> None:
    scaling_run(verb)
    verb.add_argument("--dry-run", action="store_true", help="print files and commands and exit")


def evaluate(verb: argparse.ArgumentParser) -> None:
    checkpoint(verb)
    configuration(verb)
    verb.add_argument("--out", metavar="FILE", help="where the result is merged in (default: the run's eval.json)")
    verb.add_argument(
        "--every", action="store_true", help="all checkpoints of a run folder that FILE does not have yet"
    )
    points = "with --every: N of them, evenly on a log scale of steps (default: all)"
    verb.add_argument("--points", type=int, metavar="N", help=points)
    verb.add_argument("--nproc", type=int, metavar="N", help=NPROC)


def predict(verb: argparse.ArgumentParser) -> None:
    checkpoint(verb)
    verb.add_argument("text", nargs="*", metavar="TEXT", help="one example: its text, its texts, or text and choices")
    verb.add_argument("--input", metavar="FILE", help="an example a line (default: standard input)")
    verb.add_argument("--output", metavar="FILE", help="a line for each of them (default: standard output)")
    formats = (
        "text: the line is the text; tsv: text, text2, choices; jsonl: these as keys (default: what it looks like)"
    )
    verb.add_argument("--format", choices=("auto", "text", "tsv", "jsonl"), default="auto", help=formats)
    scores = "write JSON lines with the probability of every class, as for input and --output of that kind"
    verb.add_argument("--scores", action="store_true", help=scores)


def sample(verb: argparse.ArgumentParser) -> None:
    checkpoint(verb)
    verb.add_argument("--prompt", required=True, metavar="TEXT", help="what the text begins with")
    verb.add_argument("--tokens", type=int, default=100, metavar="N", help="tokens to add (default: %(default)s)")
    temperature = "how freely tokens are drawn; 0 takes the likeliest one (default: %(default)s)"
    verb.add_argument("--temperature", type=float, default=0.8, metavar="T", help=temperature)
    top_k = "draw from the K likeliest; 0: all (default: %(default)s)"
    verb.add_argument("--top-k", type=int, default=0, metavar="K", help=top_k)
    top_p = "draw from the likeliest ones that make up the probability P; 1: all (default: %(default)s)"
    verb.add_argument("--top-p", type=float, default=1.0, metavar="P", help=top_p)
    verb.add_argument("--seed", type=int, default=0, metavar="S", help="of the draws (default: %(default)s)")


def checkpoint_export(verb: argparse.ArgumentParser) -> None:
    checkpoint(verb)
    verb.add_argument("--to", choices=("hf",), required=True, help="hf: a model of transformers and its tokenizer")
    verb.add_argument("--out", required=True, metavar="DIR", help="a new folder for it")


def checkpoint_import(verb: argparse.ArgumentParser) -> None:
    origins = "hf: a folder of OpenAIGPTLMHeadModel or OpenAIGPTDoubleHeadsModel; openai: the release of 2018"
    verb.add_argument("--from", dest="origin", choices=("hf", "openai"), required=True, help=origins)
    verb.add_argument("--source", required=True, metavar="DIR", help="the folder that holds the weights")
    verb.add_argument("--out", required=True, metavar="CKPT", help="a new folder for the checkpoint")
    verb.add_argument("--tokenizer", metavar="DIR", help="the model's (default: what the source folder holds)")
    verb.add_argument("--unverified", action="store_true", help="openai: take files that are not the released ones")


def slurm_submit(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("what", metavar="COMMAND", help="pretrain or finetune")
    configuration(verb)
    verb.add_argument("--dry-run", action="store_true", help="print all files and the command, write nothing")


def slurm_status(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run", metavar="RUN", help="a run folder")


def slurm_check(verb: argparse.ArgumentParser) -> None:
    configuration(verb)


def slurm_health(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("folder")


def slurm_verdict(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("folder")
    verb.add_argument("hosts", nargs="+")


def _job(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--job", required=True)
    verb.add_argument("--restart", default="0", help="times SLURM has requeued it")
    verb.add_argument("--faults", type=int, default=0, help="jobs before it, in a row, that a fault ended")
    verb.add_argument("--avoid", default="", help="nodes that they were on")
    verb.add_argument("--pause", type=int, required=True, help="seconds before another try, after the first fault")
    verb.add_argument("--max-tries", type=int, required=True)
    verb.add_argument("--poor-tries", type=int, required=True, help="jobs in a row that may cost more than they gain")


def slurm_begin(verb: argparse.ArgumentParser) -> None:
    _job(verb)
    verb.add_argument("--world", type=int, required=True)
    verb.add_argument("words", nargs=argparse.REMAINDER)


def slurm_stage(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--to", required=True)
    verb.add_argument("words", nargs=argparse.REMAINDER)


def slurm_end(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run")
    _job(verb)
    verb.add_argument("--status", type=int, required=True, help="exit status of the ranks' launcher")


def slurm_node(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--ranks", type=int, required=True, help="ranks of this node")
    verb.add_argument("words", nargs=argparse.REMAINDER)


def slurm_line(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("manifest")
    verb.add_argument("number", type=int)


def tracking_sync(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("runs", nargs="+", metavar="RUN", help="run folders")


def scaling_fit(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("study", nargs="?", metavar="STUDY", help="a study, or a folder that holds its results.csv")
    points = "points from elsewhere: columns n,d,loss[,u][,held_out] (default: those of STUDY)"
    verb.add_argument("--from-csv", metavar="FILE", help=points)
    verb.add_argument(
        "--out", metavar="DIR", help="where fit.json and predictions.csv go (default: the study's folder)"
    )
    forms = "chinchilla (default): E + A/N^alpha + B/D^beta; gadre: alpha = beta; repeated: tokens seen again; "
    forms += "power_n, power_d: one axis"
    verb.add_argument("--form", default="chinchilla", metavar="FORM", help=forms)
    losses = "huber of log loss, or l2 (default: huber; gadre: l2)"
    verb.add_argument("--loss", metavar="LOSS", help=losses)
    given = "with --form repeated: A=..,B=..,E=..,alpha=..,beta=.. are taken as given; with R_D=..,R_N=.. also, nothing"
    verb.add_argument(
        "--at", metavar="k=v,...", help=f"{given} is fitted and the objective there is told (default: all is fitted)"
    )
    verb.add_argument(
        "--draws", type=int, default=1000, metavar="N", help="of the bootstrap; 0: no intervals (default: %(default)s)"
    )
    verb.add_argument("--seed", type=int, default=0, metavar="S", help="of the bootstrap (default: %(default)s)")


def scaling_predict(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("study", nargs="?", metavar="STUDY", help="a study, or a folder that holds its fit.json")
    verb.add_argument("--fit", metavar="FILE", help="a fit.json (default: that of STUDY)")
    params = "parameters, in the fit's convention, like 117M (default: open)"
    verb.add_argument("--params", metavar="N", help=params)
    verb.add_argument("--tokens", metavar="D", help="tokens trained on, like 2B (default: open)")
    unique = "unique ones among them: is it worth another epoch? (default: all)"
    verb.add_argument("--unique", metavar="U", help=unique)
    flops = "compute, 6ND: the best N and D for it, or the D or N left open (default: 6ND of both)"
    verb.add_argument("--flops", metavar="C", help=flops)
    target = "with --params: tokens to reach L nats per token (default: not asked)"
    verb.add_argument("--target-loss", type=float, metavar="L", help=target)
    verb.add_argument("--json", action="store_true", help="print one JSON object in the place of text")


def report(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    verb.add_argument("--out", metavar="DIR", help="where the page goes (default: the first run's folder)")
