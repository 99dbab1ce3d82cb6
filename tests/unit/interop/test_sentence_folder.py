"""What the settings of a folder of sentence-transformers mean here, without that library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.interop import sentence_folder
from gpt1_ds.interop.sentence_folder import SentenceFolder


def read(folder: Path, **settings: Any) -> SentenceFolder:
    """A folder of two modules with these `settings`."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules]
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    (folder / sentence_folder.SETTINGS).write_text(json.dumps(settings))
    return sentence_folder.read(folder)


def test_of_many_prompts_the_rest_is_counted(tmp_path: Path) -> None:
    (told,) = read(tmp_path, prompts={f"n{number}": "x: " for number in range(7)}).remarks
    assert "'n3' ('x: '), 3 more are left out: begin" in told


def test_prompts_that_are_left_out_are_named(tmp_path: Path) -> None:
    both = {"query": "query: ", "passage": "passage: ", "empty": ""}
    found = read(tmp_path, prompts=both)
    assert found.vector.prompt == ""
    assert found.remarks == (
        "its prompts 'query' ('query: '), 'passage' ('passage: ') are left out: begin texts with them yourself",
    )
    found = read(tmp_path, prompts=both, default_prompt_name="passage", similarity_fn_name="dot")
    assert found.vector.prompt == "passage: "
    assert [line.partition(":")[0] for line in found.remarks] == [
        "its similarity is 'dot'",
        "its prompts 'query' ('query",
    ]
    for none in ({}, {"prompts": None}, {"prompts": {"query": "", "document": ""}, "default_prompt_name": None}):
        assert read(tmp_path, **none).remarks == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"prompts": {"query": "q: "}, "default_prompt_name": "document"},
            "default_prompt_name 'document' is none of its",
        ),
        ({"prompts": {"query": 3}}, "are not names with texts"),
        ({"prompts": ["q: "]}, "are not names with texts"),
        ({"prompts": {}, "default_prompt_name": ["query"]}, "default_prompt_name .* is none of its prompts"),
    ],
)
def test_prompts_that_cannot_be_meant(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, **settings)
