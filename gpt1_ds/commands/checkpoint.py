"""`checkpoint`: inspect, verify, export and import checkpoints."""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

from gpt1_ds.commands import hub_push
from gpt1_ds.commands import options as shared
from gpt1_ds.commands.parser import Command, Group
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.text import shown


def inspect(options: argparse.Namespace) -> int:
    """Print what a checkpoint holds and where it came from; without torch, as `verify`."""
    from gpt1_ds.checkpoint import manifest
    from gpt1_ds.checkpoint.folders import find
    from gpt1_ds.common.text import byte_size, count

    folder = find(Path(options.checkpoint))
    facts = manifest.read(folder)
    size = sum(file["bytes"] for file in facts["files"].values())
    layout = facts["layout"]
    print(f"{folder}")
    print(f"  step {facts['step']}, {count(facts['tokens'])} tokens, {facts['updates']} updates, {facts['precision']}")
    if "imported" in facts:
        print(f"  imported from {shown(str(facts['imported']))}: weights only, for checkpoint.init_from")
    if isinstance(facts.get("task"), dict):
        print(shown(f"  fine-tuned on {facts['task'].get('name')}, {facts['task'].get('kind')}"))
    print(
        f"  written on tensor {layout['tensor']} x pipeline {layout['pipeline']} x data {layout['data']}, "
        f"ZeRO {layout['zero']}, {'pipelined' if layout['pipelined'] else 'dense'}"
    )
    print(f"  {len(facts['parameters'])} parameters, {len(facts['files'])} files, {byte_size(size)}")
    print(f"  seed {facts['seed']}, probe loss {facts['probe']['loss']:.6f}")
    for name, value in facts["hashes"].items():
        print(shown(f"  {name} {value[:16] or 'none'}"))
    return 0


def verify(options: argparse.Namespace) -> int:
    """Compare every file with the manifest; raises CheckpointError naming the first difference."""
    from gpt1_ds.checkpoint import manifest
    from gpt1_ds.checkpoint.folders import find
    from gpt1_ds.checkpoint.verify import verify_files
    from gpt1_ds.common import progress

    folder = find(Path(options.checkpoint))
    facts = manifest.read(folder)
    done = itertools.count(1)
    with progress.bar(len(facts["files"]), unit="{:.0f} files".format) as show:
        verify_files(folder, facts, progress=lambda: show(next(done)))
    print(f"{folder}: {len(facts['files'])} files as written")
    return 0


def _export_options(parser: argparse.ArgumentParser) -> None:
    shared.checkpoint(parser)
    parser.add_argument("--to", choices=("hf",), required=True, help="hf: a model of transformers and its tokenizer")
    parser.add_argument("--out", required=True, metavar="DIR", help="a new folder for it")
    hub_push.add_options(parser)


def _export(options: argparse.Namespace) -> int:
    from gpt1_ds.launcher import libraries

    repository = hub_push.prepare(options)
    libraries.load()
    from gpt1_ds.interop import huggingface, imported

    if options.dry_run:
        from gpt1_ds.interop import hub

        imported.free_place(Path(options.out))
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "export"
            hub_push.complete_card(huggingface.export(Path(options.checkpoint), folder), folder, options)
            print("\n".join(hub.listed(folder)))
        return 0
    source, out = huggingface.export(Path(options.checkpoint), Path(options.out)), Path(options.out)
    print(f"{options.out}: {source} for transformers; its README.md says how to load it", flush=True)
    if repository is not None:
        hub_push.complete_card(source, out, options)
        hub_push.push(repository, out, options)
    return 0


def _import_options(parser: argparse.ArgumentParser) -> None:
    models = "a GPT-1, GPT-2, BERT, RoBERTa or T5 of transformers, or of sentence-transformers"
    origins = f"hf: a folder of {models}; openai: the release of 2018"
    parser.add_argument("--from", dest="origin", choices=("hf", "openai"), required=True, help=origins)
    parser.add_argument("--source", required=True, metavar="DIR", help="the folder that holds the weights")
    parser.add_argument("--out", required=True, metavar="CKPT", help="a new folder for the checkpoint")
    parser.add_argument("--tokenizer", metavar="DIR", help="the model's (default: what the source folder holds)")
    heads = "hf: what a fine-tuned model reads: single (one text), pair, or its task; none: its head is left out"
    parser.add_argument("--task", metavar="NAME", help=f"{heads} (default: it has no head)")
    parser.add_argument("--unverified", action="store_true", help="openai: take files that are not the released ones")


def _import(options: argparse.Namespace) -> int:
    from gpt1_ds.launcher import libraries

    libraries.load()
    from gpt1_ds.interop import hf_classifier, huggingface, imported, openai
    from gpt1_ds.training.provenance import provenance

    source, out = Path(options.source), imported.free_place(Path(options.out))
    if options.task is not None and (options.origin != "hf" or options.task not in hf_classifier.TASKS):
        known = f"of --from hf it is one of {', '.join(hf_classifier.TASKS)}"
        raise ConfigError(f"--task {options.task}: {known}")
    tokenizer = Path(options.tokenizer) if options.tokenizer else None
    with tempfile.TemporaryDirectory() as scratch:
        if options.origin == "hf":
            found, tokenizer = huggingface.read(source, tokenizer, Path(scratch), options.task)
        else:
            found, tokenizer = openai.read(source, tokenizer, Path(scratch), options.unverified)
        remarks = imported.publish(found, tokenizer, out, provenance())
    for remark in remarks:
        print(f"{options.source}: {remark}")
    if found.classifier is not None:
        print(f"{options.out}: a fine-tuned checkpoint; try it: gpt1-ds predict --checkpoint {options.out} TEXT...")
        return 0
    print(f"{options.out}: a checkpoint; continue with it: ", end="")
    print(f"gpt1-ds pretrain checkpoint.init_from={options.out} data.path=...")
    return 0


COMMAND = Group(
    "checkpoint",
    "look at checkpoints, take them elsewhere and bring others in",
    (
        Command("inspect", "what a checkpoint holds and where it came from", inspect, shared.checkpoint),
        Command("verify", "compare every file with the manifest", verify, shared.checkpoint),
        Command("export", "write a folder that transformers loads, and upload it", _export, _export_options),
        Command("import", "make a checkpoint of weights from elsewhere", _import, _import_options),
    ),
)
