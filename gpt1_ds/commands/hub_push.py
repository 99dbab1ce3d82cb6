"""`checkpoint export --push-to-hub`: what is asked, listed and confirmed before an export is uploaded."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.common.files import naming
from gpt1_ds.common.log import say

if TYPE_CHECKING:
    from gpt1_ds.interop.hub import Repository

ONLY = {"--public": "public", "--update": "update", "--yes": "yes", "--dry-run": "dry_run", "--license": "license"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `checkpoint export` that upload."""
    pushed = "also upload it as this repository, OWNER/NAME, private (default: do not); the token is HF_TOKEN's"
    parser.add_argument("--push-to-hub", metavar="REPO", help=pushed)
    licence = "of what is uploaded, like apache-2.0 (default: asked on a terminal)"
    parser.add_argument("--license", metavar="ID", help=licence)
    parser.add_argument("--public", action="store_true", help="let everybody see the new repository")
    parser.add_argument("--update", action="store_true", help="write into a repository that exists")
    parser.add_argument("--yes", action="store_true", help="upload without asking")
    parser.add_argument("--dry-run", action="store_true", help="only list what would be uploaded; write nothing")


def prepare(options: argparse.Namespace) -> Repository | None:
    """Check all that can be before the export; the repository, none for a dry run. Raises UserError."""
    from importlib.util import find_spec

    if options.push_to_hub is None:
        given = [name for name, key in ONLY.items() if getattr(options, key)]
        if given:
            raise ConfigError(f"{given[0]}: is for uploads alone; add --push-to-hub REPO, or leave it out")
        return None
    if find_spec("huggingface_hub") is None:
        raise ConfigError("--push-to-hub: huggingface_hub is not installed; pip install 'gpt1-ds[hub]'")
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
    """Put data, training, curves and results into the README.md of an export."""
    from gpt1_ds.checkpoint import manifest
    from gpt1_ds.common.files import write_atomic
    from gpt1_ds.common.rundir import RunDir
    from gpt1_ds.config import load_carried
    from gpt1_ds.interop import hub
    from gpt1_ds.tracking.entries import read_entries

    facts, run = manifest.read(source), RunDir(source.parent.parent)
    is_run = run.config.exists() and source.parent == run.checkpoints
    entries = [entry for entry in read_entries(run.evaluation) if entry["step"] == facts["step"]] if is_run else []
    curves = is_run and _draw_curves(run.path, folder / hub.CURVES)
    config, readme = load_carried(source / "config.yaml"), folder / "README.md"
    name = options.push_to_hub.rpartition("/")[2]
    text = hub.complete(readme.read_text(), name, options.license, facts, config, entries, curves)
    write_atomic(readme, text)


def push(repository: Repository, folder: Path, options: argparse.Namespace) -> None:
    """List the files, ask, upload. Whatever happens, the folder stays, and the line says so."""
    from gpt1_ds.interop import hub

    visible = "as it is" if repository.exists else "public" if options.public else "private"
    print("\n".join(hub.listed(folder)), flush=True)
    hidden = "" if repository.exists or options.public else " --private"
    stays = f"{folder} stays; `hf upload {repository.name} {folder}{hidden}` sends it later"
    if not options.yes and _asked(f"Upload to {repository.name} ({visible})? [y/N] ").lower() not in ("y", "yes"):
        raise UserError(f"--push-to-hub {repository.name}: not uploaded: not confirmed (--yes does); {stays}")
    try:
        print(f"{repository.push(folder, options.public)}: uploaded, {visible}")
    except UserError as error:
        raise UserError(f"{error.problems[0]}; {stays}") from None


def _draw_curves(run: Path, out: Path) -> bool:
    """The losses of a run as a picture; says why where there is none."""
    from gpt1_ds.report import curves, figures, runs

    try:
        drawn: dict[str, Any] = figures.draw(curves.data([runs.read(run)]))
    except UserError as error:
        say(f"no figure of the curves: {error.problems[0]}")
        return False
    with naming(out):
        drawn["loss"].savefig(out, dpi=130, bbox_inches="tight")
    return True


def _asked(question: str) -> str:
    """A person's answer; empty where nobody is there."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ""
    try:
        return input(question).strip()
    except EOFError:
        return ""
