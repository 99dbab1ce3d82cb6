"""Saving and loading whole checkpoints, all ranks together.

A save is written into a hidden folder beside its place, by this thread or, from a copy of the state, by another one.
When every rank's file is on disk and was read back, rank 0 adds the manifest and renames the folder, then moves
`latest`. At every moment the newest published checkpoint is complete.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import socket
import threading
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpt1_ds.checkpoint import folders, manifest, probe, publish
from gpt1_ds.checkpoint.publish import Contents, Part, total_hashes
from gpt1_ds.checkpoint.state import StateReader, hash_of, tensors_of, write_tensors
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, NodeError, UserError
from gpt1_ds.common.files import this_node
from gpt1_ds.common.memory import available_bytes
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config
from gpt1_ds.engine import master_weights
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.master_weights import MOMENTS, Fragment


@dataclass(frozen=True)
class _Save:
    """A save under way; `part` is this rank's."""

    contents: Contents
    temporary: Path
    part: Future[Part]


class Store:
    """The checkpoints of one run folder. Every method is called by all ranks together."""

    def __init__(self, run_dir: RunDir, engine: Engine, config: Config) -> None:
        self.run_dir, self.engine, self.config = run_dir, engine, config
        self.grid, self.rank = engine.grid, engine.grid.rank
        self._hosts = self.grid.gather(socket.gethostname())
        self._under_way: _Save | None = None
        self.failure: UserError | None = None  # why the last save failed
        self._writer = ThreadPoolExecutor(1, "checkpoint", initializer=_yield_to_training)

    def start(self, contents: Contents, background: bool = True) -> None:
        """Begin to save the engine's state; `finish` publishes it. No other save may be under way.

        With `background`, and where checkpoint.background and the memory allow, the state is copied and another thread
        writes the copy. A run outlives a failed save: it is said, and the next one tries again.
        """
        assert self._under_way is None, "one save at a time"
        loss = probe.probe_loss(self.engine, self.config.model)
        self.engine.progress("save")  # the probe was an evaluation; what follows may take as long as a save
        if not math.isfinite(loss):
            self._give_up(contents.step, None, UserError("the weights are not finite; the last checkpoint is kept"))
            return
        facts = {**contents.facts, "probe": {"loss": loss, "precision": self.config.train.precision}}
        contents = replace(contents, facts=facts)
        owned = self._owned()
        size = sum(4 * len(f.master) * (1 + len(f.moments)) for f in owned)
        final = self.run_dir.checkpoint(contents.step)
        temporary = final.with_name(f".{final.name}.{self.grid.share(uuid.uuid4().hex[:8])}.tmp")
        needed = sum(self.grid.gather(size))
        try:
            self.grid.agree(lambda: _make_room(temporary, needed if self.rank == 0 else 0))
        except UserError as failure:
            self._give_up(contents.step, temporary, failure)
            return
        part: Future[Part] = Future()
        wanted: str = self.config.checkpoint.background if background else "off"
        if wanted == "auto":  # whether every rank of each machine can hold a copy of its `size` bytes twice over
            fits = available_bytes() > 2 * size * self._hosts.count(socket.gethostname())
            wanted = "on" if all(self.grid.gather(fits)) else "off"
        if wanted == "on":
            part = self._writer.submit(self._write, temporary, [_copied(fragment) for fragment in owned])
        else:
            try:
                part.set_result(self._write(temporary, owned))
            except (OSError, UserError) as error:  # for all ranks to agree on, like one of the thread
                part.set_exception(error)
        self._under_way = _Save(contents, temporary, part)

    @property
    def is_written(self) -> bool:
        """Whether a save is under way and this rank's part of it is done: when all are, `finish` does not wait."""
        return self._under_way is not None and self._under_way.part.done()

    def finish(self) -> Path | None:
        """Publish the save under way; None when there is none, or when it failed, which is said and cleaned up."""
        if self._under_way is None:
            return None
        save, self._under_way = self._under_way, None
        final = self.run_dir.checkpoint(save.contents.step)
        try:
            parts = self.grid.gather(self.grid.agree(save.part.result))
            self.grid.on_rank_0(lambda: self._publish(save, final, parts))
        except UserError as failure:
            self._give_up(save.contents.step, save.temporary, failure)
            return None
        return final

    def load(self, folder: Path, weights_only: bool = False) -> dict[str, Any]:
        """Fill the engine from a checkpoint written on any layout; its manifest. Raises CheckpointError.

        With `weights_only` the optimizer starts afresh.
        """
        facts = self.grid.agree(lambda: manifest.read(folder))
        self.grid.agree(lambda: self._fill(folder, facts, weights_only))
        found, saved = total_hashes(self.grid.gather(_hashes(self._owned()))), facts["parameters"]
        changed = [name for name in sorted({*found, *saved}) if found.get(name) != saved.get(name)]
        if changed:
            raise CheckpointError(f"{folder}: {changed[0]} is not what was saved ({len(changed)} parameters differ)")
        master_weights.publish(self.engine)
        loss = probe.probe_loss(self.engine, self.config.model)
        self.grid.agree(lambda: probe.check(folder, facts["probe"], loss, self.config.train.precision))
        return facts

    def load_newest(self) -> tuple[Path, dict[str, Any]] | None:
        """Fill the engine from the newest checkpoint that verifies and loads; (its folder, its manifest), or None when
        there is none. Newer ones are then renamed aside, out loud; while none is good, all stay as they are.

        Raises CheckpointError when there are checkpoints and none is good.
        """
        found = self.grid.on_rank_0(lambda: folders.steps_in(self.run_dir.checkpoints))
        bad: list[tuple[Path, str]] = []
        for folder in reversed(found):
            try:
                self.verify(folder)
                facts = self.load(folder)
            except manifest.NewerFormatError:
                raise
            except CheckpointError as error:
                bad.append((folder, str(error)))
                continue
            self.grid.on_rank_0(partial(folders.settle, self.run_dir, folder, bad))
            return folder, facts
        if bad:
            problems = "; ".join(problem for _, problem in bad)
            raise CheckpointError(f"{self.run_dir.checkpoints}: no good checkpoint is left: {problems}")
        self.grid.on_rank_0(lambda: folders.refuse_to_start_over(self.run_dir))
        return None

    def verify(self, folder: Path) -> None:
        """Raise CheckpointError for a checkpoint whose files are not as they were written; the ranks share the
        reading.
        """
        share, threads = (self.rank, self.grid.world), torch.get_num_threads()
        alive = partial(self.engine.progress, "set-up")
        self.grid.agree(lambda: manifest.verify_files(folder, manifest.read(folder), share, threads, alive))

    def _fill(self, folder: Path, facts: dict[str, Any], weights_only: bool) -> None:
        """Read this rank's slices into the masters and, to resume, the moments."""
        reader = StateReader(folder)
        resume = not weights_only and all(reader.has(kind) for kind in MOMENTS)
        master_weights.forget_moments(self.engine)
        if resume:
            master_weights.make_moments(self.engine, facts["updates"])
            master_weights.set_loss_scaler(self.engine, facts["loss_scaler"])
        for fragment in master_weights.fragments(self.engine):
            self.engine.progress("set-up")  # one sign of life per tensor
            targets = {"master": fragment.master, **(fragment.moments if resume else {})}
            for kind, values in targets.items():
                values.copy_(reader.read(kind, fragment.info, fragment.offset, len(values)))

    def _owned(self) -> list[Fragment]:
        return [f for f in master_weights.fragments(self.engine) if master_weights.is_saved_here(self.engine, f.info)]

    def _write(self, temporary: Path, owned: list[Fragment]) -> Part:
        tensors, index = tensors_of(owned)
        if not tensors:
            return Part()
        name = f"state/rank-{self.rank:05d}.safetensors"
        size, digest = write_tensors(temporary / name, tensors)
        if manifest.file_facts(temporary / name) != {"bytes": size, "sha256": digest}:
            problem = "reads back otherwise than it was written: the disk or the way to it is in trouble"
            raise NodeError(this_node(), f"{temporary / name}: {problem} (on {this_node()})")
        return Part(name, size, digest, index, _hashes(owned))

    def _publish(self, save: _Save, final: Path, parts: list[Part]) -> None:
        publish.complete(save.temporary, save.contents, parts)
        manifest.read(save.temporary)
        publish.publish(save.temporary, final, self.run_dir.latest)

    def _give_up(self, step: int, temporary: Path | None, failure: UserError) -> None:
        self.failure = failure
        if self.rank == 0:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            log.say(f"checkpoint of step {step} was not saved: {failure}; training goes on")
            self.run_dir.add_event("save failed", step=step, error=str(failure))


def _hashes(owned: list[Fragment]) -> dict[str, int]:
    """This rank's part of every parameter's hash."""
    hashes: dict[str, int] = {}
    for fragment in owned:
        name = fragment.info.name
        hashes[name] = hashes.get(name, 0) + int(hash_of(fragment))
    return hashes


def _make_room(temporary: Path, needed: int) -> None:
    (temporary / "state").mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(temporary).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(temporary.parent))


def _copied(fragment: Fragment) -> Fragment:
    moments = {kind: values.to("cpu", copy=True) for kind, values in fragment.moments.items()}
    return replace(fragment, master=fragment.master.to("cpu", copy=True), moments=moments)


def _yield_to_training() -> None:
    """Lower the priority of the calling thread: on Linux it has its own."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
