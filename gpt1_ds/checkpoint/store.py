"""Saving whole checkpoints, all ranks together.

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
from pathlib import Path

from gpt1_ds.checkpoint import manifest, probe
from gpt1_ds.checkpoint.commit import Contents, Part, commit, complete
from gpt1_ds.checkpoint.fingerprint import hashes_of
from gpt1_ds.checkpoint.state import tensors_of, write_tensors
from gpt1_ds.common import log
from gpt1_ds.common.errors import NodeError, UserError
from gpt1_ds.common.files import this_node
from gpt1_ds.common.memory import available_bytes
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config
from gpt1_ds.engine import master_weights
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.master_weights import Fragment


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
        owned = master_weights.saved_fragments(self.engine)
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
            self.grid.on_rank_0(lambda: self._commit(save, final, parts))
        except UserError as failure:
            self._give_up(save.contents.step, save.temporary, failure)
            return None
        return final

    def _write(self, temporary: Path, owned: list[Fragment]) -> Part:
        tensors, index = tensors_of(owned)
        if not tensors:
            return Part()
        name = f"state/rank-{self.rank:05d}.safetensors"
        size, digest = write_tensors(temporary / name, tensors)
        if manifest.file_facts(temporary / name) != {"bytes": size, "sha256": digest}:
            problem = "reads back otherwise than it was written: the disk or the way to it is in trouble"
            raise NodeError(this_node(), f"{temporary / name}: {problem} (on {this_node()})")
        return Part(name, size, digest, index, hashes_of(owned))

    def _commit(self, save: _Save, final: Path, parts: list[Part]) -> None:
        complete(save.temporary, save.contents, parts)
        manifest.read(save.temporary)
        commit(save.temporary, final, self.run_dir.latest)

    def _give_up(self, step: int, temporary: Path | None, failure: UserError) -> None:
        self.failure = failure
        if self.rank == 0:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            log.say(f"checkpoint of step {step} was not saved: {failure}; training goes on")
            self.run_dir.add_event("save failed", step=step, error=str(failure))

    def _fits_in_memory(self, size: int) -> bool:
        """Whether every rank of this machine can hold a copy of its `size` bytes twice over."""
        here = socket.gethostname()
        return available_bytes() > 2 * size * sum(host == here for host in self._hosts)


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
