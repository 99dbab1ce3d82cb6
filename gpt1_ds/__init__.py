"""GPT-1 from raw text to a fine-tuned model: Megatron-core layers inside DeepSpeed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt1_ds.evaluation.load import load as load

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """`gpt1_ds.load` brings torch along, so it is imported when it is asked for."""
    if name == "load":
        from gpt1_ds.launcher import libraries

        libraries.load()
        from gpt1_ds.evaluation.load import load

        return load
    raise AttributeError(f"module 'gpt1_ds' has no attribute {name!r}")
