"""`pretrain`: next-token prediction."""

from __future__ import annotations

from gpt1_ds.config import Config
from gpt1_ds.training.outcome import Outcome
from gpt1_ds.training.pretraining import open_pretraining
from gpt1_ds.training.run import live


def pretrain(config: Config) -> int:
    """Train on this rank until the run is done or asked to stop; the process's exit code."""
    return run_pretraining(config).exit_code


def run_pretraining(config: Config) -> Outcome:
    """Train on this rank; how it ended. Raises UserError and TrainingError."""
    return live(config, open_pretraining)
