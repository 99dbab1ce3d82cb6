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


@pytest.mark.parametrize("name", sentence_folder.LIMITS)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"processing_kwargs": {"text": {"max_length": 5}}},
            "processing_kwargs {'text': {'max_length': 5}} is not read",
        ),
        ({"tokenizer_args": {"truncation_side": "left"}}, "tokenizer_args .* is not read: say it in tokenizer_config"),
        ({"config_args": {"hidden_act": "relu"}}, "config_args {'hidden_act': 'relu'} is not read"),
        ({"model_args": {"num_hidden_layers": 1, "dtype": "auto"}}, "model_args .* is not read"),
        ({"query_length": 12}, "query_length 12 is not read"),
        ({"transformer_task": "fill-mask"}, "transformer_task 'fill-mask': only feature-extraction is known here"),
    ],
)
def test_settings_that_would_change_vectors_are_refused(
    values: dict[str, Any], message: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path)


def test_settings_that_change_nothing(tmp_path: Path) -> None:
    values = {"model_args": {"attn_implementation": "sdpa"}, "config_args": {}, "query_length": None}
    (tmp_path / sentence_folder.LIMITS[0]).write_text(json.dumps({"transformer_task": "feature-extraction", **values}))
    assert read(tmp_path).vector.pooling == ("mean",)


def cross_encoder(folder: Path, *kinds: str, **settings: Any) -> Path:
    """A folder as version 6 of the library writes it."""
    listed = [{"path": "", "type": f"sentence_transformers.base.modules.{kind}"} for kind in ("Transformer", *kinds)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / sentence_folder.LIMITS[0]).write_text(json.dumps({"transformer_task": "sequence-classification"}))
    (folder / sentence_folder.SETTINGS).write_text(json.dumps({"model_type": "CrossEncoder", **settings}))
    return folder


def test_a_cross_encoder_makes_no_vectors(tmp_path: Path) -> None:
    assert not sentence_folder.is_sentence_folder(tmp_path)
    assert not sentence_folder.is_sentence_folder(cross_encoder(tmp_path, prompts={"query": "q: "}))
    (tmp_path / "other").mkdir()
    read(tmp_path / "other")
    assert sentence_folder.is_sentence_folder(tmp_path / "other")


@pytest.mark.parametrize(
    ("kinds", "settings", "message"),
    [
        (["LogitScore"], {}, "a CrossEncoder with a LogitScore: only its Transformer"),
        ([], {"prompts": {"query": "q: "}, "default_prompt_name": "query"}, "a CrossEncoder with the prompt 'q: '"),
    ],
)
def test_more_than_a_classifier_is_refused(
    kinds: list[str], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        sentence_folder.is_sentence_folder(cross_encoder(tmp_path, *kinds, **settings))


def test_what_follows_a_score_is_found(tmp_path: Path) -> None:
    """In the places of versions 2, 4 and 6."""
    sigmoid, identity = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
    assert sentence_folder.after_score(tmp_path, {}) is None
    assert sentence_folder.after_score(tmp_path, {"sbert_ce_default_activation_function": identity}) is None
    assert sentence_folder.after_score(tmp_path, {"sbert_ce_default_activation_function": sigmoid}) == "Sigmoid"
    assert sentence_folder.after_score(tmp_path, {"sentence_transformers": {"activation_fn": sigmoid}}) == "Sigmoid"
    assert sentence_folder.after_score(cross_encoder(tmp_path, activation_fn=sigmoid), {}) == "Sigmoid"
