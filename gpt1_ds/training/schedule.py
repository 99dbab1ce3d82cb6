"""Learning rate and length of a run, as pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.text import amount
from gpt1_ds.config.batch_sizes import BatchSizes
from gpt1_ds.config.objective import RowLengths
from gpt1_ds.config.sections import DataConfig, ScheduleConfig, TrainConfig

DEFAULT_WARMUP_FRACTION = 0.02
UNIFORM = BatchSizes.constant(1)  # whatever size all batches have


def learning_rate(
    schedule: ScheduleConfig, highest: float, step: int, steps: int, sizes: BatchSizes = UNIFORM
) -> float:
    """Rate of update `step` of `steps` (1 is the first): linear warm-up from 0, then the schedule's shape.

    The highest rate is that of update `warmup`, or of the first one without a warm-up. A falling shape gets to its end
    at update `steps` + 1, which is never made, so that no update is wasted at a rate of 0. `rsqrt` falls with the root
    of the step, however long the run is (Raffel et al. 2020, section 3.1.2, has 1 / sqrt(max(step, warm-up)): constant
    where this one warms up). A run that is made longer has other rates from there on: those of the new length.

    Where the batch grows (`sizes`), a step counts as the part of a full batch that it is: the shape is one of tokens.
    """
    warmup, here, length = warmup_position(schedule, steps, sizes), sizes.position(step), sizes.position(steps)
    if here < warmup:
        return highest * here / warmup
    final, end = schedule.final_fraction, length + 1
    progress = (here - warmup) / (end - warmup)
    if schedule.kind == "cosine":
        factor = final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))
    elif schedule.kind == "linear":
        factor = final + (1 - final) * (1 - progress)
    elif schedule.kind == "wsd":
        decay = round(schedule.decay_fraction * length)
        factor = final + (1 - final) * min(1.0, (end - here) / (decay + 1))
    elif schedule.kind == "rsqrt":
        factor = max(final, math.sqrt(max(1, warmup) / max(1, here)))
    elif schedule.kind == "constant":
        factor = 1.0
    else:
        assert_never(schedule.kind)
    return highest * factor


def warmup_position(schedule: ScheduleConfig, steps: int, sizes: BatchSizes = UNIFORM) -> float:
    """Returns where the warm-up of the learning rate ends, in full batches."""
    if schedule.warmup_steps is not None:
        return sizes.position(min(schedule.warmup_steps, steps))
    fraction = DEFAULT_WARMUP_FRACTION if schedule.warmup_fraction is None else schedule.warmup_fraction
    return math.ceil(fraction * sizes.position(steps))


def warmup_note(schedule: ScheduleConfig, steps: int) -> str | None:
    """Returns what to say of a warm-up that is longer than the run, which is cut, or that wsd's decay cuts short; None
    where nothing does.
    """
    warmup, decay = schedule.warmup_steps, round(schedule.decay_fraction * steps)
    if warmup is None or not steps:
        return None
    if warmup > steps:
        return (
            f"schedule.warmup_steps={warmup} is more than the {amount(steps, 'step')} of the run: the learning rate "
            "rises until the end"
        )
    if schedule.kind == "wsd" and warmup > steps - decay:
        return (
            f"schedule.warmup_steps={warmup} reaches into the decay of the last {amount(decay, 'step')}: the learning "
            "rate falls at once from its highest value to that of the decay; warm up for fewer, or use a smaller "
            "schedule.decay_fraction"
        )
    return None


def total_steps(
    train: TrainConfig,
    data: DataConfig,
    row: RowLengths,
    tokens_per_epoch: int,
    first_passes: Sequence[tuple[str, int]] = (),
) -> int:
    """Returns the optimizer steps of the whole run. Raises ConfigError when they pass more often than allowed over the
    data, or over one of several sources, of which `first_passes` says the sequences of the run until each has been read
    once.
    """
    tokens_per_step, sizes = train.global_batch * row.text, train.batch_sizes(row.fed)  # of a full batch
    steps = train.all_steps(row, tokens_per_epoch)
    passes = [(f"the {tokens_per_epoch} training tokens", tokens_per_epoch / tokens_per_step)]
    if len(first_passes) > 1:
        passes += [(f"{path}, for its weight", sequences / train.global_batch) for path, sequences in first_passes]
    for what, batches in passes:  # full ones of an epoch; the last step may end in the next
        if data.epochs_limit is not None and steps > sizes.steps(data.epochs_limit * batches):
            raise ConfigError(
                f"data.epochs_limit={data.epochs_limit}: {steps} steps pass {sizes.position(steps) / batches:.2f} "
                f"times over {what}; train shorter, add data or raise the limit"
            )
    return steps
