"""From a configuration to the objects that train: data, groups, engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

from gpt1_ds.config import Config
from gpt1_ds.data.loader import BatchShape
from gpt1_ds.engine import master_weights
from gpt1_ds.engine.base import Engine, MicroBatch
from gpt1_ds.engine.deepspeed import register
from gpt1_ds.engine.deepspeed.settings import set_timeouts
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.model import dropout
from gpt1_ds.model.names import initial_value
from gpt1_ds.objectives.base import Objective, TextObjective
from gpt1_ds.objectives.pretraining import pretraining_objective

_LIVING: WeakSet[Engine] = WeakSet()


def batch_shape(config: Config, groups: ProcessGroups) -> BatchShape:
    """Returns how a full batch falls on ranks."""
    return BatchShape(config.train.global_batch, config.train.micro_batch, groups.layout.data, groups.data_rank)


def build_engine(
    config: Config, groups: ProcessGroups, initialise: bool = True, objective: Objective | None = None
) -> Engine:
    """Returns the engine that the configuration asks for, with initial weights unless they will be loaded. `config`
    names the vocabulary size: a run's or a checkpoint's does. Without an `objective` it is that of pre-training, and
    may only be evaluated on the probe and on text that is given.
    """
    register.check(config.train.deepspeed_patches)
    assert config.model.vocab_size is not None, "with_vocabulary fills it in"
    if config.parallel.pipelined:
        from gpt1_ds.engine.pipelined import PipelineEngine as Kind
    else:
        from gpt1_ds.engine.plain import DenseEngine as Kind  # type: ignore[assignment]
    engine: Engine = Kind(config, config.model.vocab_size, groups, objective or pretraining_objective(config))
    _LIVING.add(engine)
    master_weights.connect_optimizer(engine)
    set_timeouts(groups.timeout)
    if initialise:
        draw_weights(engine, config.run.seed)
    return engine


def release_engines() -> None:
    """Before process groups are destroyed: NCCL waits until no graph holds a collective of theirs, and DeepSpeed
    keeps groups, their threads and their sockets. Engines cannot train any more.
    """
    engines = list(_LIVING)
    for engine in engines:
        if engine.graphs is not None:
            engine.graphs.release()
    for engine in engines:
        engine.deepspeed.destroy()
        _LIVING.discard(engine)


def draw_weights(engine: Engine, seed: int) -> None:
    """Gives every parameter its initial value."""
    for fragment in master_weights.fragments(engine):
        value = initial_value(fragment.info, seed).reshape(-1)
        fragment.master.copy_(value[fragment.offset : fragment.offset + len(fragment.master)])
    master_weights.publish(engine)


def training_batches(objective: TextObjective, rows: Sequence[Any], seed: int, step: int) -> list[MicroBatch]:
    """Returns a rank's micro-batches of text with dropout keys, as the `objective` of pre-training makes them."""
    return [MicroBatch.of(objective.batch(part), dropout.row_keys(seed, step, part.row_B)) for part in rows]


def evaluation_batches(objective: TextObjective, rows: Sequence[Any]) -> list[MicroBatch]:
    """Returns batches as `training_batches` does, for evaluation: rows numbered -1 weigh nothing."""
    return training_batches(objective, rows, 0, 0)
