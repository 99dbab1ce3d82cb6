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
from typing import Any

from gpt1_ds.checkpoint import manifest, probe
from gpt1_ds.checkpoint.shard import INDEX, RankShard, merged_index, total_hashes, write_shard
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, UserError
from gpt1_ds.common.files import sync_folder, write_atomic, write_json
from gpt1_ds.common.memory import available_bytes
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config
from gpt1_ds.data.tokenizers.base import write_tokenizer
from gpt1_ds.engine import master_weights
from gpt1_ds.engine.base import Engine


@dataclass(frozen=True)
class Contents:
    """What goes into a checkpoint besides the tensors: `facts` for the manifest, the config, the tokenizer's files."""

    step: int
    facts: dict[str, Any]
    config_yaml: str
    tokenizer: dict[str, bytes]


@dataclass(frozen=True)
class _Save:
    """A save under way; `shard` is this rank's."""

    contents: Contents
    temporary: Path
    shard: Future[RankShard]


class CheckpointManager:
    """The checkpoints of one run folder. Every method is called by all ranks together."""

    def __init__(self, run_dir: RunDir, engine: Engine, config: Config) -> None:
        self.run_dir, self.engine, self.config = run_dir, engine, config
        self.groups, self.rank = engine.groups, engine.groups.rank
        self._hosts = self.groups.gather(socket.gethostname())
        self._under_way: _Save | None = None
        self.failure: UserError | None = None  # why the last save failed
        self._writer = ThreadPoolExecutor(1, "checkpoint", initializer=yield_to_training)

    def start(self, contents: Contents, background: bool = True) -> None:
        """Begins to save the engine's state; `finish` publishes it. No other save may be under way.

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
        size = sum(4 * len(values) for fragment in owned for values in fragment.saved.values())
        final = self.run_dir.checkpoint(contents.step)
        temporary = final.with_name(f".{final.name}.{self.groups.share(uuid.uuid4().hex[:8])}.tmp")
        needed = sum(self.groups.gather(size))
        try:
            self.groups.agree(lambda: _make_room(temporary, needed if self.rank == 0 else 0))
        except UserError as failure:
            self._give_up(contents.step, temporary, failure)
            return
        file = f"state/rank-{self.rank:05d}.safetensors"
        shard: Future[RankShard] = Future()
        wanted: str = self.config.checkpoint.background if background else "off"
        if wanted == "auto":  # whether every rank of each machine can hold a copy of its state twice over
            copy = master_weights.host_bytes(self.engine, owned)
            fits = available_bytes() > 2 * copy * self._hosts.count(socket.gethostname())
            wanted = "on" if all(self.groups.gather(fits)) else "off"
        if wanted == "on":
            copies = master_weights.kept(owned)
            shard = self._writer.submit(lambda: write_shard(temporary, file, copies()))
        else:
            try:
                shard.set_result(write_shard(temporary, file, owned))
            except (OSError, UserError) as error:  # for all ranks to agree on, like one of the thread
                shard.set_exception(error)
        self._under_way = _Save(contents, temporary, shard)

    @property
    def is_written(self) -> bool:
        """Returns whether this rank's shard of the save under way is done: when all are, `finish` does not wait."""
        return self._under_way is not None and self._under_way.shard.done()

    def finish(self) -> Path | None:
        """Publishes the save under way; None when there is none, or when it failed, which is said and cleaned up."""
        if self._under_way is None:
            return None
        save, self._under_way = self._under_way, None
        final = self.run_dir.checkpoint(save.contents.step)
        try:
            shards = self.groups.gather(self.groups.agree(save.shard.result))
            self.groups.on_rank_0(lambda: self._commit(save, final, shards))
        except UserError as failure:
            self._give_up(save.contents.step, save.temporary, failure)
            return None
        return final

    def _commit(self, save: _Save, final: Path, shards: list[RankShard]) -> None:
        complete(save.temporary, save.contents, shards)
        manifest.read(save.temporary)
        commit(save.temporary, final, self.run_dir.latest)

    def _give_up(self, step: int, temporary: Path | None, failure: UserError) -> None:
        self.failure = failure
        if self.rank == 0:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            log.say(f"checkpoint of step {step} was not saved: {failure}")
            self.run_dir.add_event("save failed", step=step, error=str(failure))


def _make_room(temporary: Path, needed: int) -> None:
    (temporary / "state").mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(temporary).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(temporary.parent))


def yield_to_training() -> None:
    """Lowers the priority of the calling thread: on Linux it has its own."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def complete(temporary: Path, contents: Contents, shards: list[RankShard]) -> None:
    """Adds to a folder with every rank's file what makes it a checkpoint, and flushes it to disk."""
    written = [shard for shard in shards if shard.file]
    for shard in written:
        path = temporary / shard.file
        if not path.is_file() or path.stat().st_size != shard.bytes:
            raise CheckpointError(
                f"{path}: not seen here as it was written: is run.dir on a disk that all nodes share?"
            )
    write_json(temporary / INDEX, merged_index(written))
    write_atomic(temporary / "config.yaml", contents.config_yaml)
    write_tokenizer(contents.tokenizer, temporary / "tokenizer")
    files = {shard.file: {"bytes": shard.bytes, "sha256": shard.sha256} for shard in written}
    others = {str(path.relative_to(temporary)): path for path in sorted(temporary.rglob("*")) if path.is_file()}
    files.update({name: manifest.file_facts(path) for name, path in others.items() if name not in files})
    hashes = total_hashes(shard.hashes for shard in shards)
    manifest.write(temporary, {**contents.facts, "parameters": hashes, "files": files})
    for folder in (temporary / "state", temporary / "tokenizer", temporary):
        sync_folder(folder)


def commit(temporary: Path, final: Path, latest: Path) -> None:
    """Puts a completed folder in its place and lets `latest` name it."""
    replaced = final.with_name(f".{final.name}{manifest.REPLACED}")
    if final.exists():
        os.rename(final, replaced)
    os.rename(temporary, final)
    sync_folder(final.parent)
    with contextlib.suppress(OSError):  # it is published; who starts next corrects `latest`
        write_atomic(latest, final.name + "\n")
    shutil.rmtree(replaced, ignore_errors=True)
