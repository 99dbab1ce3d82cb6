from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpt1_ds.data import python_docs
from gpt1_ds.data.inputs import find_inputs
from gpt1_ds.data.reading import read_unit
from gpt1_ds.data.units import plan_units


@pytest.fixture
def small_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of a few files."""
    files = {
        "b.py": '"""' + "A module that says a good deal about itself, in plain words." + '"""\nraise SystemExit\n',
        "a.py": f'def late():\n    """{"A function documented below an indentation. " * 2}\n\n    More.\n    """\n'
        f'class C:\n    """short"""\n    def m(self):\n        """{">>> 1 + 1  # an example" + chr(10) * 2}"""\n',
        "broken.py": "def (:\n",
        "test/c.py": '"""' + "Tests are left out, however long their docstrings are: not prose." + '"""\n',
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(python_docs.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    return tmp_path


def test_docstrings_are_read_without_running_modules(small_library: Path) -> None:
    late = "A function documented below an indentation. A function documented below an indentation. \n\nMore.\n"
    itself = "A module that says a good deal about itself, in plain words.\n"
    assert list(python_docs.documents()) == [late, itself]


def test_the_corpus_is_an_input(small_library: Path) -> None:
    (unit,) = plan_units(find_inputs(["python-docs"]))
    pieces = list(read_unit(unit))
    assert [piece.ends_document for piece in pieces] == [True, True]
    assert str(unit) == "python-docs"


def test_identity_follows_the_files(small_library: Path) -> None:
    before = python_docs.identity()
    (small_library / "b.py").write_text("")
    assert python_docs.identity() != before


def test_the_real_one_is_a_few_megabytes_of_english() -> None:
    from itertools import islice

    texts = list(islice(python_docs.documents(), 120))
    assert len(texts) == 120
    assert sum(map(len, texts)) > 200_000
    assert sum("the " in text for text in texts) > 90
