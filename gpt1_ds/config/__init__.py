"""The configuration. One file per section; loading and validation never import torch."""

from gpt1_ds.config.layers import to_carried_yaml, to_yaml
from gpt1_ds.config.load import load, load_carried, load_recorded
from gpt1_ds.config.model import ModelConfig
from gpt1_ds.config.presets import find_file
from gpt1_ds.config.sections import Config, with_vocabulary
from gpt1_ds.config.task import ColumnsConfig, ProbeConfig, TaskConfig
from gpt1_ds.config.validate import world_problems

__all__ = [
    "ColumnsConfig",
    "Config",
    "ModelConfig",
    "ProbeConfig",
    "TaskConfig",
    "find_file",
    "load",
    "load_carried",
    "load_recorded",
    "to_carried_yaml",
    "to_yaml",
    "with_vocabulary",
    "world_problems",
]
