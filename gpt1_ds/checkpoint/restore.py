"""Filling an engine from a checkpoint that any layout has written: with all of it, or with the first weights of a fine-
tuning run. All ranks call every function together.

As in the authors' code (`--n_transfer`): the embeddings and the first k blocks are taken over, the rest is drawn anew,
and all of it is trained. Rows of the special tokens are fresh too, unless the checkpoint has learned to use them. A
task's head is always fresh, but for the pooler of a model that was trained with one.

Where the context is longer than the checkpoint's, its learned positions come first; those after them are drawn as at
the start of a run, or are the checkpoint's again from its first one on. A run with the longer context would have drawn
the same rows at its start, on every layout (model/names.py). The moments of new rows are 0, like those of rows that no
text has reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.architecture.layer import Layer
from gpt1_ds.checkpoint import folders, manifest, probe
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.checkpoint.shard import hashes_of, total_hashes
from gpt1_ds.checkpoint.verify import verify_files
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, DamagedError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, ModelConfig, load_carried
from gpt1_ds.config.sections import NewPositions
from gpt1_ds.engine import master_weights, shared_disk
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.master_weights import Fragment
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.model.names import ParameterInfo, initial_value

POSITIONS = "positions.weight"


def stored_info(reader: StateReader, info: ParameterInfo, positions: NewPositions) -> ParameterInfo | None:
    """Returns the positions as the checkpoint has them; None of another parameter, and where none is to be added."""
    if info.name != POSITIONS or positions == "refuse" or info.name not in reader.index:
        return None
    rows, *width = reader.index[info.name].shape
    return replace(info, shape=(rows, *width)) if rows < info.shape[0] and (*width,) == info.shape[1:] else None


def read_grown(
    reader: StateReader, kind: str, info: ParameterInfo, offset: int, count: int, positions: NewPositions, seed: int
) -> Tensor:
    """Returns 1-D fp32 [count]: what StateReader.read gives, and of positions that the checkpoint lacks the new ones.
    Raises CheckpointError.
    """
    stored = stored_info(reader, info, positions)
    if stored is None:
        return reader.read(kind, info, offset, count)
    known = stored.shape[0] * stored.shape[1]
    if kind == "master" and positions == "repeat":
        return reader.whole(kind, stored).reshape(-1)[torch.arange(offset, offset + count) % known]
    if kind == "master":
        values = initial_value(info, seed).reshape(-1)[offset : offset + count].clone()
    else:
        values = torch.zeros(count)
    kept = max(0, min(count, known - offset))
    if kept:
        values[:kept] = reader.read(kind, stored, offset, kept)
    return values


def as_stored(reader: StateReader, fragments: Iterable[Fragment], positions: NewPositions) -> Iterator[Fragment]:
    """Yields the fragments without positions that the checkpoint lacks, so that their hashes are comparable with its
    own.
    """
    for fragment in fragments:
        stored = stored_info(reader, fragment.info, positions)
        if stored is None:
            yield fragment
        elif (kept := stored.shape[0] * stored.shape[1] - fragment.offset) > 0:
            yield Fragment(stored, fragment.offset, fragment.master[:kept])


def restore(engine: Engine, config: Config, folder: Path, weights_only: bool = False) -> dict[str, Any]:
    """Fills the engine from a checkpoint, and returns its manifest. With `weights_only` the optimizer starts afresh.

    Raises CheckpointError.
    """
    facts, positions = same_manifest(engine.groups, folder), config.checkpoint.positions
    reader, model = engine.groups.agree(
        lambda: (_fill(engine, config, folder, facts, weights_only), _probed(config, folder))
    )
    here = as_stored(reader, master_weights.saved_fragments(engine), positions)
    parts = engine.groups.gather(hashes_of(list(here)))
    found, saved = total_hashes(parts), facts["parameters"]
    changed = [name for name in sorted({*found, *saved}) if found.get(name) != saved.get(name)]
    if changed:
        raise CheckpointError(f"{folder}: {changed[0]} is not what was saved ({len(changed)} parameters differ)")
    master_weights.publish(engine)
    loss = probe.probe_loss(engine, model)
    engine.groups.agree(lambda: probe.check(folder, facts["probe"], loss, config.train.precision))
    if model.context < config.model.context and engine.groups.rank == 0:
        log.say(f"{folder}: the context grows from {model.context} to {config.model.context} tokens")
    return facts


def same_manifest(groups: ProcessGroups, folder: Path) -> dict[str, Any]:
    """Returns the manifest of a checkpoint, which is the same on all ranks. Raises CheckpointError, and ConfigError
    where hosts have different checkpoints at this path.
    """
    facts = groups.agree(lambda: manifest.read(folder))
    groups.compare({str(folder): manifest.checksum(facts)[:16]})
    return facts


Replace = Callable[[Path, str], Path | None]  # a damaged checkpoint, what is wrong -> where it is whole


def restore_verified(
    engine: Engine, config: Config, folder: Path, run_dir: RunDir, replace: Replace | None = None
) -> tuple[Path, dict[str, Any]]:
    """Fills the engine from a checkpoint of the run after its files were verified, or from what may `replace` it where
    they are damaged, and returns (its folder, its manifest). Raises CheckpointError.
    """
    try:
        verify_checkpoint(engine, folder, run_dir.path)
        return folder, restore(engine, config, folder)
    except DamagedError as error:
        if replace is None or (whole := replace(folder, str(error))) is None:
            raise
        return restore_verified(engine, config, whole, run_dir)


def restore_newest(
    engine: Engine, config: Config, run_dir: RunDir, replace: Replace | None = None
) -> tuple[Path, dict[str, Any]] | None:
    """Fills the engine from the newest checkpoint that verifies and loads; (its folder, its manifest), or None when
    there is none. Newer ones are then renamed aside, out loud; while none is good, all stay as they are.

    Raises CheckpointError when there are checkpoints and none is good.
    """
    found = engine.groups.on_rank_0(lambda: folders.steps_in(run_dir.checkpoints))
    bad: list[tuple[Path, str]] = []
    for folder in reversed(found):
        try:
            loaded = restore_verified(engine, config, folder, run_dir, replace)
        except manifest.NewerFormatError:
            raise
        except CheckpointError as error:
            bad.append((folder, str(error)))
            continue
        engine.groups.on_rank_0(partial(folders.settle, run_dir, loaded[0], bad))
        return loaded
    if bad:
        problems = "; ".join(problem for _, problem in bad)
        raise CheckpointError(
            f"{run_dir.checkpoints}: no good checkpoint is left: {problems}; put one back, or choose "
            "another run.name to start over"
        )
    engine.groups.on_rank_0(lambda: folders.refuse_to_start_over(run_dir))
    return None


def verify_checkpoint(engine: Engine, folder: Path, shared: Path | None = None) -> None:
    """Raises CheckpointError for a checkpoint whose files are not as they were written. The ranks share the reading, of
    all hosts where the files are on the same disk as the folder `shared` (engine/shared_disk.py).
    """
    facts = same_manifest(engine.groups, folder)
    part = shared_disk.reading_part(engine.groups, [folder / name for name in sorted(facts["files"])], shared)
    threads, alive = torch.get_num_threads(), partial(engine.progress, "set-up")
    engine.groups.agree(lambda: verify_files(folder, facts, part, threads, alive))


def _probed(config: Config, folder: Path) -> ModelConfig:
    """Returns the model as the probe of the checkpoint saw it, whose context may have been shorter."""
    if config.checkpoint.positions == "refuse":
        return config.model
    theirs = load_carried(folder / "config.yaml").model
    return replace(config.model, context=min(config.model.context, theirs.context))


def _fill(engine: Engine, config: Config, folder: Path, facts: dict[str, Any], weights_only: bool) -> StateReader:
    """Reads this rank's slices into the master weights and, to resume, the moments. Returns what has read them."""
    reader, positions, seed = StateReader(folder), config.checkpoint.positions, config.run.seed
    resume = not weights_only and reader.has_moments
    master_weights.forget_moments(engine)
    if resume:
        master_weights.make_moments(engine, facts["updates"])
        master_weights.set_loss_scaler(engine, facts["loss_scaler"])
    for fragment in master_weights.fragments(engine):
        engine.progress("set-up")  # one sign of life per tensor
        targets = {"master": fragment.master, **(fragment.moments if resume else {})}
        for kind, values in targets.items():
            count = len(values)
            values.copy_(read_grown(reader, kind, fragment.info, fragment.offset, count, positions, seed))
        for kind, values in fragment.factors.items() if resume else ():
            values.copy_(reader.factor(kind, fragment.info, len(values)))
    return reader


NOTHING = -1
TOKENS = "tokens.weight"
POOLER = "pooler."


def is_transferred(name: str, layer: Layer, layers: int | None, pooler: bool) -> bool:
    """Returns whether a parameter is taken over with the first `layers` blocks (-1: nothing, 0: embeddings, None: all),
    from a checkpoint with a `pooler` or without one.
    """
    if layer.kind == "task_head":
        return pooler and layers is None and name.startswith(POOLER)
    return layers is None or (layers != NOTHING and (layer.depth is None or layer.depth < layers))


def has_pooler(reader: StateReader) -> bool:
    """Returns whether a checkpoint's model was trained with one."""
    return any(name.startswith(POOLER) for name in reader.index)


def transfer(
    engine: Engine,
    folder: Path,
    layers: int | None,
    fresh_rows: Collection[int],
    positions: NewPositions,
    seed: int,
) -> None:
    """Fills this rank's master weights from the checkpoint in `folder` and from `seed`. They are in the model after
    master_weights.publish, where ranks meet. `positions` says what becomes of those that the checkpoint lacks.

    Token rows that the checkpoint does not have, and those of the ids `fresh_rows`, are drawn. Raises CheckpointError
    when a parameter has another shape there.
    """
    reader = StateReader(folder)
    pooler = has_pooler(reader)
    for fragment in master_weights.fragments(engine):
        engine.progress("set-up")
        info, count = fragment.info, len(fragment.master)
        if not is_transferred(info.name, engine.architecture.layer_of[info.name], layers, pooler):
            values = initial_value(info, seed).reshape(-1)[fragment.offset : fragment.offset + count]
        elif info.name == TOKENS:
            values = _token_rows(reader, info, fresh_rows, seed).reshape(-1)[fragment.offset : fragment.offset + count]
        else:
            values = read_grown(reader, "master", info, fragment.offset, count, positions, seed)
        fragment.master.copy_(values)


def _token_rows(reader: StateReader, info: ParameterInfo, fresh_rows: Collection[int], seed: int) -> Tensor:
    """Returns [rows of this rank, D]."""
    rows_VD = initial_value(info, seed).clone()
    stored = reader.index[TOKENS].shape[0] if TOKENS in reader.index else info.shape[0]
    have = replace(info, shape=(stored, *info.shape[1:]), start=min(info.start, stored), stop=min(info.stop, stored))
    count = have.stop - have.start
    if count > 0:
        old_VD = reader.read("master", have, 0, count * info.shape[1]).view(count, -1)
        kept = torch.tensor([row not in fresh_rows for row in range(have.start, have.stop)])
        rows_VD[:count][kept] = old_VD[kept]
    return rows_VD
