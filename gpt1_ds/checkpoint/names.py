"""The names of checkpoint folders: in their place, and while a save replaces them. Never imports torch."""

import re
from pathlib import Path

REPLACED = ".replaced"  # ends the hidden name of an older checkpoint of the same step until the new one is in its place


def step_of(checkpoint: Path) -> int | None:
    """The step that a checkpoint folder is named after; None for a folder of another name."""
    return int(name[1]) if (name := re.fullmatch(r"step-(\d{8,})", published_name(checkpoint))) else None


def published_name(checkpoint: Path) -> str:
    """The name of a checkpoint folder in its place, which one that a save was replacing has lost."""
    hidden = checkpoint.name.startswith(".") and checkpoint.name.endswith(REPLACED)
    return checkpoint.name[1 : -len(REPLACED)] if hidden else checkpoint.name
