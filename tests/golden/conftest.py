"""What the comparisons with other libraries share."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def tokenizer(tiny_data: Path) -> Path:
    """The folder of the tokenizer of `tiny_data`."""
    return tiny_data.parent / "tokenizer"
