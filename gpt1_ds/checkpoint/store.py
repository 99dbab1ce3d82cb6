"""Saving and loading whole checkpoints, all ranks together.

A save is written into a hidden folder beside its place, by this thread or, from a copy of the state, by another one.
When every rank's file is on disk and hashed, rank 0 adds the manifest and renames the folder, then moves `latest`. At
every moment the newest published checkpoint is complete.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import socket
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpt1_ds.checkpoint import manifest, probe, publish
from gpt1_ds.checkpoint.fingerprint import partial_hash
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.checkpoint.publish import Contents, Part, total_hashes
from gpt1_ds.checkpoint.slices import Geometry
from gpt1_ds.checkpoint.state import StateReader, slice_of, tensors_of, write_tensors
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, UserError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.memory import available_bytes
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config
from gpt1_ds.parallel import masters
from gpt1_ds.parallel.engine import Engine
from gpt1_ds.parallel.masters import MOMENTS, Fragment


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
        wanted = self.config.checkpoint.background if background else "off"
        if wanted == "on" or (wanted == "auto" and all(self.grid.gather(self._fits_in_memory(size)))):
            part = self._writer.submit(self._write, temporary, [_copied(fragment) for fragment in owned])
        else:
            try:
                part.set_result(self._write(temporary, owned))
            except OSError as error:
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
        facts = manifest.read(folder)
        self.grid.agree(lambda: self._fill(folder, facts, weights_only))
        found, saved = total_hashes(self.grid.gather(_hashes(self._owned()))), facts["parameters"]
        changed = [name for name in sorted({*found, *saved}) if found.get(name) != saved.get(name)]
        if changed:
            raise CheckpointError(f"{folder}: {changed[0]} is not what was saved ({len(changed)} parameters differ)")
        masters.publish(self.engine)
        loss = probe.probe_loss(self.engine, self.config.model)
        probe.check(folder, facts["probe"], loss, self.config.train.precision)
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
                self.grid.on_rank_0(partial(self._mend_latest, folder))
                return folder
            found.append(problem)
            self.grid.on_rank_0(partial(self._set_aside, folder, problem))
        if found:
            raise CheckpointError(f"{self.run_dir.checkpoints}: no good checkpoint is left: {'; '.join(found)}")
        self.grid.on_rank_0(self._refuse_to_start_over)
        return None

    def verify(self, folder: Path) -> str | None:
        """What is wrong with a checkpoint, or None; the ranks share the reading."""

        def check() -> str | None:
            try:
                share, threads = (self.rank, self.grid.world), torch.get_num_threads()
                alive = partial(self.engine.progress, "set-up")
                manifest.verify_files(folder, manifest.read(folder), share, threads, alive)
            except manifest.NewerFormatError:
                raise
            except CheckpointError as error:
                return str(error)
            return None

        return next((problem for problem in self.grid.gather(self.grid.agree(check)) if problem is not None), None)

    def prune(self) -> None:
        """Delete what is older than the newest `keep`, except multiples of `keep_every` and what `latest` and `best`
        name. Rank 0 alone calls this; raises OSError.
        """
        settings = self.config.checkpoint
        pointers = [path for path in (self.run_dir.latest, self.run_dir.best) if path.exists()]
        named = {path.read_text(errors="replace").strip() for path in pointers}
        for folder in steps_in(self.run_dir.checkpoints)[: -settings.keep]:
            step = int(folder.name.removeprefix("step-"))
            if folder.name not in named and not (settings.keep_every and step % settings.keep_every == 0):
                doomed = folder.with_name(f".{folder.name}.old")  # renamed first: never half a checkpoint in place
                os.rename(folder, doomed)
                shutil.rmtree(doomed, ignore_errors=True)

    def _fill(self, folder: Path, facts: dict[str, Any], weights_only: bool) -> None:
        """Read this rank's slices into the masters and, to resume, the moments."""
        reader = StateReader(folder)
        resume = not weights_only and all(reader.has(kind) for kind in MOMENTS)
        masters.forget_moments(self.engine)
        if resume:
            masters.make_moments(self.engine, facts["updates"])
            masters.set_loss_scaler(self.engine, facts["loss_scaler"])
        for fragment in masters.fragments(self.engine):
            self.engine.progress("set-up")  # one sign of life per tensor
            targets = {"master": fragment.master, **(fragment.moments if resume else {})}
            for kind, values in targets.items():
                values.copy_(reader.read(kind, fragment.info, fragment.offset, len(values)))

    def _owned(self) -> list[Fragment]:
        return [f for f in masters.fragments(self.engine) if masters.is_saved_here(self.engine, f.info)]

    def _write(self, temporary: Path, owned: list[Fragment]) -> Part:
        tensors, index = tensors_of(owned)
        if not tensors:
            return Part()
        name = f"state/rank-{self.rank:05d}.safetensors"
        size, digest = write_tensors(temporary / name, tensors)
        return Part(name, size, digest, index, _hashes(owned))

    def _publish(self, save: _Save, final: Path, parts: list[Part]) -> None:
        publish.complete(save.temporary, save.contents, parts)
        publish.publish(save.temporary, final, self.run_dir.latest)

    def _give_up(self, step: int, temporary: Path | None, failure: UserError) -> None:
        if self.rank == 0:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            log.say(f"checkpoint of step {step} was not saved: {failure}; training goes on")
            self.run_dir.add_event("save failed", step=step, error=str(failure))

    def _mend_latest(self, newest: Path) -> None:
        latest = self.run_dir.latest
        named = latest.read_text(errors="replace").strip() if latest.is_file() else "nothing"
        if named != newest.name:
            log.say(f"{latest} names {named[:80]}; the newest good checkpoint is {newest.name}")
            self.run_dir.add_event("stale latest", named=named[:80], newest=newest.name)
            write_atomic(latest, newest.name + "\n")

    def _fits_in_memory(self, size: int) -> bool:
        """Whether every rank of this machine can hold a copy of its `size` bytes twice over."""
        here = socket.gethostname()
        return available_bytes() > 2 * size * sum(host == here for host in self._hosts)

    def _refuse_to_start_over(self) -> None:
        """No checkpoint is there, but there were some: training from scratch would bury them."""
        left = sorted(path.name for path in self.run_dir.checkpoints.glob("step-*.damaged-*"))
        if self.run_dir.latest.exists():
            left.append(self.run_dir.latest.read_text(errors="replace").strip()[:80])
        if left:
            raise CheckpointError(
                f"{self.run_dir.checkpoints}: no good checkpoint is left, there were {', '.join(left)}; put one back, "
                "or choose another run.name to start over"
            )

    def _set_aside(self, folder: Path, problem: str) -> None:
        name = f"{folder.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
        os.rename(folder, folder.with_name(name))
        log.say(f"{problem}; set aside as {name}")
        self.run_dir.add_event("set aside", checkpoint=folder.name, to=name, problem=problem)


def _hashes(owned: list[Fragment]) -> dict[str, int]:
    """This rank's part of every parameter's hash."""
    hashes: dict[str, int] = {}
    for fragment in owned:
        info = fragment.info
        part = partial_hash(fragment.master, Geometry.of(info.shape, info.dim), slice_of(fragment))
        hashes[info.name] = hashes.get(info.name, 0) + part
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
