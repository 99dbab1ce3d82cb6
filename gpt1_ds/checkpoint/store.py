"""Saving and loading whole checkpoints, all ranks together.

A save is written into a hidden folder beside its place; when every rank's files are on disk and hashed, rank 0 adds the
manifest and renames the folder, then moves `latest`. At every moment the newest published checkpoint is complete.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.fingerprint import as_text, partial_hash
from gpt1_ds.checkpoint.folder import complete
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.checkpoint.slices import Geometry
from gpt1_ds.checkpoint.state import StateReader, slice_of, tensors_of, to_json, write_tensors
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, UserError
from gpt1_ds.common.files import sync_folder, write_atomic
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config.checkpoint import CheckpointConfig
from gpt1_ds.parallel import masters
from gpt1_ds.parallel.engine import Engine
from gpt1_ds.parallel.masters import MOMENTS, Fragment


@dataclass(frozen=True)
class Contents:
    """What goes into a checkpoint besides the tensors: `facts` for the manifest, the resolved config, the tokenizer."""

    step: int
    facts: dict[str, Any]
    config_yaml: str
    tokenizer: Path


class Store:
    """The checkpoints of one run folder. Every method is called by all ranks together."""

    def __init__(self, run_dir: RunDir, engine: Engine) -> None:
        self.run_dir, self.engine = run_dir, engine
        self.grid, self.rank = engine.grid, engine.grid.rank

    def save(self, contents: Contents) -> Path | None:
        """Publish a checkpoint of the engine's state; None when it failed, which removes what was written and is said.

        A run outlives a failed save: the previous checkpoint stays, the next save tries again.
        """
        final = self.run_dir.checkpoint(contents.step)
        held = masters.fragments(self.engine)
        owned = [fragment for fragment in held if masters.is_saved_here(self.engine, fragment.info)]
        hashes = self._hashes(held, owned)
        if self.grid.on_rank_0(lambda: _already_saved(final, hashes)):
            return final
        temporary = final.with_name(f".{final.name}.{self.grid.share(uuid.uuid4().hex[:8])}.tmp")
        try:
            self.grid.agree(lambda: (temporary / "state").mkdir(parents=True, exist_ok=True))
            parts = self.grid.gather(self.grid.agree(lambda: self._write_part(temporary, owned)))
            self.grid.on_rank_0(lambda: self._publish(temporary, final, contents, hashes, parts))
        except UserError as failure:
            if self.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
                log.say(f"checkpoint of step {contents.step} was not saved: {failure}; training goes on")
                with contextlib.suppress(OSError):
                    self.run_dir.add_event("save failed", step=contents.step, error=str(failure))
            return None
        return final

    def load(self, folder: Path, weights_only: bool = False) -> dict[str, Any]:
        """Fill the engine from a checkpoint written on any layout; its manifest. Raises CheckpointError.

        With `weights_only` the optimizer starts afresh.
        """
        facts = manifest.read(folder)
        reader = StateReader(folder)
        resume = not weights_only and all(reader.has(kind) for kind in MOMENTS)
        if resume:
            masters.make_moments(self.engine, facts["updates"])
            masters.set_loss_scaler(self.engine, facts["loss_scaler"])
        for fragment in masters.fragments(self.engine):
            targets = {"master": fragment.master, **(fragment.moments if resume else {})}
            for kind, values in targets.items():
                values.copy_(reader.read(kind, fragment.info, fragment.offset, len(values)))
        masters.publish(self.engine)
        return facts

    def newest(self) -> Path | None:
        """The newest checkpoint that verifies; damaged ones are renamed aside, out loud. None when there is none.

        Raises CheckpointError when there are checkpoints and none is good.
        """
        folders = self.grid.on_rank_0(lambda: steps_in(self.run_dir.checkpoints))
        found = []
        for folder in reversed(folders):
            problem = self.verify(folder)
            if problem is None:
                return folder
            found.append(problem)
            if self.rank == 0:
                aside = folder.with_name(f"{folder.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
                os.rename(folder, aside)
                log.say(f"{problem}; set aside as {aside.name}")
                self.run_dir.add_event("set aside", checkpoint=folder.name, to=aside.name, problem=problem)
        if found:
            raise CheckpointError(f"{self.run_dir.checkpoints}: no good checkpoint is left: {'; '.join(found)}")
        return None

    def verify(self, folder: Path) -> str | None:
        """What is wrong with a checkpoint, or None; the ranks share the reading."""

        def check() -> str | None:
            try:
                manifest.verify_files(folder, manifest.read(folder), (self.rank, self.grid.world))
            except CheckpointError as error:
                return str(error)
            return None

        return next((problem for problem in self.grid.gather(check()) if problem is not None), None)

    def prune(self, settings: CheckpointConfig) -> None:
        """Delete what is older than the newest `keep`, except multiples of `keep_every` and what `latest` names."""
        if self.rank:
            return
        latest = self.run_dir.latest.read_text().strip() if self.run_dir.latest.exists() else ""
        for folder in steps_in(self.run_dir.checkpoints)[: -settings.keep]:
            step = int(folder.name.removeprefix("step-"))
            if folder.name != latest and not (settings.keep_every and step % settings.keep_every == 0):
                doomed = folder.with_name(f".{folder.name}.old")  # renamed first: never half a checkpoint in place
                os.rename(folder, doomed)
                shutil.rmtree(doomed, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what killed saves left behind. Only the holder of the run's lock may call this."""
        if self.rank == 0:
            for leftover in self.run_dir.checkpoints.glob(".step-*"):
                shutil.rmtree(leftover, ignore_errors=True)

    def _write_part(self, temporary: Path, owned: list[Fragment]) -> dict[str, Any] | None:
        tensors, index = tensors_of(owned)
        if not tensors:
            return None
        name = f"state/rank-{self.rank:05d}.safetensors"
        size, digest = write_tensors(temporary / name, tensors)
        return {"file": name, "bytes": size, "sha256": digest, "index": to_json(index)}

    def _publish(
        self, temporary: Path, final: Path, contents: Contents, hashes: dict[str, str], parts: list[Any]
    ) -> None:
        written = [part for part in parts if part is not None]
        complete(temporary, written, contents.config_yaml, contents.tokenizer, contents.facts, hashes)
        replaced = final.with_name(f".{final.name}.replaced")
        if final.exists():
            os.rename(final, replaced)
        os.rename(temporary, final)
        sync_folder(final.parent)
        write_atomic(self.run_dir.latest, final.name + "\n")
        shutil.rmtree(replaced, ignore_errors=True)

    def _hashes(self, held: list[Fragment], owned: list[Fragment]) -> dict[str, str]:
        """Layout-independent hash of every parameter's master, summed over the ranks."""
        names: list[str] = sorted({name for part in self.grid.gather([f.info.name for f in held]) for name in part})
        sums = torch.zeros(len(names), dtype=torch.int64)
        for fragment in owned:
            geometry = Geometry.of(fragment.info.shape, fragment.info.dim)
            sums[names.index(fragment.info.name)] += partial_hash(fragment.master, geometry, slice_of(fragment))
        dist.all_reduce(sums, group=self.grid.control_group)
        return {name: as_text(int(value)) for name, value in zip(names, sums, strict=True)}


def _already_saved(final: Path, hashes: dict[str, str]) -> bool:
    """Whether this very state was published before (a run that resumed and stopped at once)."""
    with contextlib.suppress(CheckpointError):
        return bool(manifest.read(final)["parameters"] == hashes)
    return False
