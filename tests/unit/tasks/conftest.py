from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.data.tokenizers.imports import import_wordpiece


@pytest.fixture(scope="module")
def wordpiece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose pieces are letters."""
    place, letters = tmp_path_factory.mktemp("wordpiece"), "abcdefghijklmnopqrstuvwxyz0123456789"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters), *",.:-)?'"]
    (place / "vocab.txt").write_text("\n".join(pieces) + "\n")
    import_wordpiece(place / "vocab.txt", place / "tokenizer", cased=False)
    return place / "tokenizer"
