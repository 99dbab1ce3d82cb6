"""GPT-1 from raw text to a fine-tuned model: Megatron-core layers inside DeepSpeed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt1_ds.evaluation.language_model import load as load
    from gpt1_ds.tracking.record import read_metrics as read_metrics
    from gpt1_ds.training.train import train as train

__version__ = "0.2.0"

# What is imported when it is asked for: some of it brings torch along.
_PUBLIC = {
    "load": "gpt1_ds.evaluation.language_model",
    "train": "gpt1_ds.training.train",
    "read_metrics": "gpt1_ds.tracking.record",
}
__all__ = ["__version__", "load", "read_metrics", "train"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'gpt1_ds' has no attribute {name!r}")
    if name == "load":
        from gpt1_ds.launcher import libraries

        libraries.load()
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
