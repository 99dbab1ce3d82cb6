"""`checkpoint`: inspect, verify, average, export and import checkpoints; --push-to-hub: what is asked, listed and
confirmed before an export is uploaded."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from gpt1_ds.commands import shared_options
from gpt1_ds.commands.parser import Command, Group
from gpt1_ds.common import log
from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.common.files import scratch_folder
from gpt1_ds.common.text import shown
from gpt1_ds.launcher import libraries

if TYPE_CHECKING:
    from gpt1_ds.interop.hub import Repository


ONLY = {"--public": "public", "--update": "update", "--yes": "yes", "--dry-run": "dry_run", "--license": "license"}


def _upload_options(parser: argparse.ArgumentParser) -> None:
    pushed = "also upload it as this repository, OWNER/NAME, private (default: do not); the token is HF_TOKEN's"
    parser.add_argument("--push-to-hub", metavar="REPO", help=pushed)
    licence = "of what is uploaded, like apache-2.0 (default: asked on a terminal)"
    parser.add_argument("--license", metavar="ID", help=licence)
    parser.add_argument("--public", action="store_true", help="let everybody see the new repository")
    parser.add_argument("--update", action="store_true", help="write into a repository that exists")
    parser.add_argument("--yes", action="store_true", help="upload without asking")
    parser.add_argument("--dry-run", action="store_true", help="only list what would be uploaded; write nothing")


def prepare(options: argparse.Namespace) -> Repository | None:
    """Checks all that can be before the export, and returns the repository, none for a dry run. Raises UserError."""
    if options.push_to_hub is None:
        given = [name for name, key in ONLY.items() if getattr(options, key)]
        if given:
            raise ConfigError(f"{given[0]}: is for uploads alone; add --push-to-hub REPO, or leave it out")
        return None
    from gpt1_ds.interop import hub

    hub.check_name(options.push_to_hub)
    if options.license is not None:
        hub.check_licence(options.license)
    if options.dry_run:
        return None
    if options.license is None:
        options.license = _asked("Licence of the model (an identifier, like apache-2.0): ")
        if not options.license:
            raise ConfigError("--license: is needed to upload; name one, like --license apache-2.0")
        hub.check_licence(options.license)
    return hub.find(options.push_to_hub, options.update)


def complete_card(source: Path, folder: Path, options: argparse.Namespace) -> None:
    """Puts data, training, curves and results into the README.md of an export."""
    from gpt1_ds.checkpoint import manifest
    from gpt1_ds.common.files import write_atomic
    from gpt1_ds.common.rundir import RunDir
    from gpt1_ds.config import load_carried
    from gpt1_ds.interop import hub
    from gpt1_ds.tracking.record import of_own_data, read_entries

    facts, run = manifest.read(source), RunDir(source.parent.parent)
    is_run = run.config.exists() and source.parent == run.checkpoints
    own = of_own_data(read_entries(run.evaluation if is_run else None))
    entries = [entry for entry in own if entry["step"] == facts["step"]]
    curves = is_run and _draw_curves(run.path, folder / hub.CURVES)
    config, readme = load_carried(source / "config.yaml"), folder / "README.md"
    name = options.push_to_hub.rpartition("/")[2]
    text = hub.complete(readme.read_text(encoding="utf-8"), name, options.license, facts, config, entries, curves)
    write_atomic(readme, text)


def push(repository: Repository, folder: Path, options: argparse.Namespace) -> None:
    """Lists the files, asks, uploads. Whatever happens, the folder stays, and the line says so."""
    from gpt1_ds.interop import hub

    visible = "as it is" if repository.exists else "public" if options.public else "private"
    print("\n".join(hub.listed(folder)), flush=True)
    hidden = "" if repository.exists or options.public else " --private"
    stays = f"{folder} stays; `hf upload {repository.name} {quote(str(folder))}{hidden}` sends it later"
    if not options.yes and _asked(f"Upload to {repository.name} ({visible})? [y/N] ").lower() not in ("y", "yes"):
        raise UserError(f"--push-to-hub {repository.name}: not uploaded: not confirmed (--yes does); {stays}")
    try:
        print(f"{repository.push(folder, options.public)}: uploaded, {visible}")
    except UserError as error:
        raise UserError(f"{error.problems[0]}; {stays}") from None


def _draw_curves(run: Path, out: Path) -> bool:
    """Draws the losses of a run as a picture, and returns whether there is one; says why where there is none."""
    from gpt1_ds.report import curves, figures, run_figures, runs

    try:
        drawn: dict[str, Any] = run_figures.draw(curves.data([runs.read(run)]))
    except UserError as error:
        log.say(f"no figure of the curves: {error.problems[0]}")
        return False
    figures.save_png(drawn["loss"], out)
    return True


def _asked(question: str) -> str:
    """Returns a person's answer; empty where nobody is there."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ""
    try:
        return input(question).strip()
    except EOFError:
        return ""


def inspect(options: argparse.Namespace) -> int:
    """Prints what a checkpoint holds and where it came from; without torch, as `verify`."""
    from gpt1_ds.checkpoint import manifest
    from gpt1_ds.checkpoint.folders import find_checkpoint
    from gpt1_ds.common.text import byte_size, count

    folder = find_checkpoint(Path(options.checkpoint))
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
    """Compares every file with the manifest; raises CheckpointError naming the first difference."""
    from gpt1_ds.checkpoint import manifest
    from gpt1_ds.checkpoint.folders import find_checkpoint, while_it_is_there
    from gpt1_ds.checkpoint.verify import verify_files

    folder = find_checkpoint(Path(options.checkpoint))
    done = itertools.count(1)
    with while_it_is_there(folder):
        facts = manifest.read(folder)
        with log.bar(len(facts["files"]), unit="{:.0f} files".format) as show:
            verify_files(folder, facts, progress=lambda: show(next(done)))
    print(f"{folder}: {len(facts['files'])} files as written")
    return 0


def _average_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--last", type=int, required=True, metavar="N", help="how many of its newest checkpoints")
    parser.add_argument("--out", required=True, metavar="CKPT", help="a new folder for the checkpoint")


def _average(options: argparse.Namespace) -> int:
    libraries.load()
    from gpt1_ds.evaluation.average import average_checkpoints
    from gpt1_ds.interop import imported

    out = imported.free_place(Path(options.out))
    folders = average_checkpoints(Path(options.run), options.last, out)
    print(f"{options.out}: the mean of {', '.join(folder.name for folder in folders)}; weights only, to evaluate")
    return 0


def _export_options(parser: argparse.ArgumentParser) -> None:
    shared_options.checkpoint(parser)
    parser.add_argument("--to", choices=("hf",), required=True, help="hf: a model of transformers and its tokenizer")
    parser.add_argument("--out", required=True, metavar="DIR", help="a new folder for it")
    _upload_options(parser)


def _export(options: argparse.Namespace) -> int:
    repository = prepare(options)
    libraries.load()
    from gpt1_ds.interop import hf_export, imported

    if options.dry_run:
        from gpt1_ds.interop import hub

        imported.free_place(Path(options.out))
        with scratch_folder() as scratch:
            folder = Path(scratch) / "export"
            complete_card(hf_export.export(Path(options.checkpoint), folder), folder, options)
            print("\n".join(hub.listed(folder)))
        return 0
    source, out = hf_export.export(Path(options.checkpoint), Path(options.out)), Path(options.out)
    print(f"{options.out}: {source} for transformers; its README.md says how to load it", flush=True)
    if repository is not None:
        complete_card(source, out, options)
        push(repository, out, options)
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
    libraries.load()
    from gpt1_ds.interop import head_import, hf_import, imported, openai
    from gpt1_ds.training.provenance import provenance

    source, out = Path(options.source), imported.free_place(Path(options.out))
    if options.task is not None and (options.origin != "hf" or options.task not in head_import.TASKS):
        known = f"of --from hf it is one of {', '.join(head_import.TASKS)}"
        raise ConfigError(f"--task {options.task}: {known}")
    tokenizer = Path(options.tokenizer) if options.tokenizer else None
    with scratch_folder() as scratch:
        if options.origin == "hf":
            found, tokenizer = hf_import.read(source, tokenizer, Path(scratch), options.task)
        else:
            found, tokenizer = openai.read(source, tokenizer, Path(scratch), options.unverified)
        remarks = imported.publish(found, tokenizer, out, provenance())
    for remark in remarks:
        print(f"{options.source}: {remark}")
    if found.classifier is not None:
        way_on = f"gpt1-ds predict --checkpoint {quote(options.out)} TEXT..."
        print(f"{options.out}: a fine-tuned checkpoint; try it: {way_on}")
        return 0
    way_on = f"gpt1-ds pretrain {quote(f'checkpoint.init_from={options.out}')} data.path=..."
    print(f"{options.out}: a checkpoint; continue with it: {way_on}")
    return 0


def _mirror_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--to", required=True, metavar="ADDRESS", help="its checkpoint.mirror, like s3://BUCKET/FOLDER")


def _mirror(options: argparse.Namespace) -> int:
    libraries.load()
    from gpt1_ds.training import mirror

    print(f"{options.run}: all of it is in {mirror.copy_run(Path(options.run), options.to)}")
    return 0


def _fetch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="ADDRESS", help="the address of a run in a store: checkpoint.mirror/NAME")
    parser.add_argument("--out", required=True, metavar="RUN", help="a new folder for the run")


def _fetch(options: argparse.Namespace) -> int:
    libraries.load()
    from gpt1_ds.interop import imported
    from gpt1_ds.training import mirror

    out = imported.free_place(Path(options.out))
    print(f"{options.out}: {mirror.fetch_run(options.address, out)} of {options.address}, verified")
    return 0


COMMAND = Group(
    "checkpoint",
    "look at checkpoints, take them elsewhere and bring others in",
    (
        Command("inspect", "what a checkpoint holds and where it came from", inspect, shared_options.checkpoint),
        Command("verify", "compare every file with the manifest", verify, shared_options.checkpoint),
        Command(
            "average", "make one checkpoint of a run's last ones: the mean of their weights", _average, _average_options
        ),
        Command("mirror", "copy what a store lacks of a run", _mirror, _mirror_options),
        Command("fetch", "bring a run's newest checkpoint and records back from a store", _fetch, _fetch_options),
        Command("export", "write a folder that transformers loads, and upload it", _export, _export_options),
        Command("import", "make a checkpoint of weights from elsewhere", _import, _import_options),
    ),
)
