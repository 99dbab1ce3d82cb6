"""The 2018 tokenizer in transformers' form: how close it comes, and that the export says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from gpt1_ds.config import ModelConfig
from gpt1_ds.data.tokenizers.openai_bpe import OpenAIBpe
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.interop import hf_export
from tests.helpers.foreign import import_hf, make_checkpoint
from tests.helpers.published import published
from tests.helpers.shared_data import shared_data

TINY = ModelConfig(layers=1, width=8, heads=2, context=16)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("2018")
    published("openai", folder / "tokenizer")
    make_checkpoint(folder / "checkpoint", folder / "tokenizer", TINY)
    hf_export.export(folder / "checkpoint", folder / "exported")
    return folder / "exported"


@pytest.fixture(scope="module")
def both(exported: Path) -> tuple[OpenAIBpe, Any]:
    ours = load_tokenizer(exported / hf_export.TOKENIZER)
    assert isinstance(ours, OpenAIBpe)
    return ours, transformers.AutoTokenizer.from_pretrained(exported)


@pytest.mark.parametrize(
    "text",
    [
        "It was the best of times, it was the worst of times.",
        "Mr. Darcy doesn't, can't and won't; he cannot. 'Tis I'm, you're, we've, he'll, she'd!",
        "A dash\u2014or two \u2013 and an ellipsis\u2026 and \u201cquotes\u201d, \u2018single\u2019 too.",
        "\n one \n\n \n two\n\nthree\n",
        "_start_ <eod> _classify_ <unk>",
        "(brackets) [and] {more} a/b a-b a--b a|b a_b ***",
        "",
    ],
)
def test_ids_are_the_originals(text: str, both: tuple[OpenAIBpe, Any]) -> None:
    ours, theirs = both
    assert theirs(text)["input_ids"] == ours.encode(text).tolist()


def test_symbols_have_the_ids_of_the_release(both: tuple[OpenAIBpe, Any]) -> None:
    ours, theirs = both
    assert len(theirs) == ours.vocab_size == 40482
    symbols = ["<unk>", "_start_", "_delimiter_", "_classify_", "<eod>"]
    assert theirs.convert_tokens_to_ids(symbols) == [0, 40478, 40479, 40480, 40481]
    assert theirs.decode(ours.encode("the king 's gold"), skip_special_tokens=True).strip() == "the king 's gold"


def test_the_difference_is_small_and_told(exported: Path, both: tuple[OpenAIBpe, Any]) -> None:
    ours, theirs = both
    books = sorted(shared_data("books").glob("*.txt"))[::13]
    lines = [line for book in books for line in book.read_text()[60000:90000].split("\n") if line.strip()]
    same = sum(theirs(line)["input_ids"] == ours.encode(line).tolist() for line in lines)
    assert len(lines) > 1000
    assert same / len(lines) > 0.985
    assert "99.8 % of the lines get the same ids" in (exported / "README.md").read_text()


@pytest.mark.parametrize("rows", [40478, 40481])
def test_models_with_and_without_added_symbols(rows: int, exported: Path, tmp_path: Path) -> None:
    """The published model has 40,478 rows; one fine-tuned with two heads has the three symbols of the tasks too."""
    config = transformers.OpenAIGPTConfig(vocab_size=rows, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    transformers.OpenAIGPTDoubleHeadsModel(config).save_pretrained(tmp_path / "model")
    remarks = import_hf(tmp_path / "model", tmp_path / "out", exported / hf_export.TOKENIZER)
    assert remarks[1].startswith(f"token ids {rows} (")
    taken = "token ids 40478 (start), 40479 (delimiter), 40480 (extract) are taken for the symbols"
    assert [line.startswith(taken) for line in remarks[2:]] == [True] * (rows > 40478)
