"""The whole configuration: one frozen dataclass per section, nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpt1_ds.config.model import ModelConfig
from gpt1_ds.config.objective import ObjectiveConfig, RowLengths
from gpt1_ds.config.parallel import ParallelConfig
from gpt1_ds.config.probes import ProbeConfig
from gpt1_ds.config.sections import (
    CheckpointConfig,
    DataConfig,
    GuardConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    TrackingConfig,
    TrainConfig,
)
from gpt1_ds.config.slurm import SlurmConfig
from gpt1_ds.config.task import TaskConfig


@dataclass(frozen=True, kw_only=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    task: TaskConfig | None = None  # fine-tuning only
    probes: list[ProbeConfig] = field(default_factory=list)  # evaluate only

    @property
    def row(self) -> RowLengths:
        """Returns the lengths of a row of pre-training."""
        return self.objective.lengths(self.model)


def with_vocabulary(config: Config, vocab_size: int) -> Config:
    """`config` with `model.vocab_size` filled in from the tokenizer, as it is saved."""
    if config.model.vocab_size is not None:
        return config
    return replace(config, model=replace(config.model, vocab_size=vocab_size))
