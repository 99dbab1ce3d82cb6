"""A configuration is written byte for byte as OmegaConf writes it: its hash stands in every checkpoint."""

from __future__ import annotations

import dataclasses

import pytest
from omegaconf import OmegaConf

from gpt1_ds.config import Config, load, to_yaml
from gpt1_ds.config.presets import presets
from gpt1_ds.config.values import plain
from gpt1_ds.config.yaml_file import as_yaml

ODD = [
    *(
        "yes",
        "No",
        "TRUE",
        "off",
        "y",
        "null",
        "~",
        "",
        "1",
        "1e5",
        "0x1F",
        "1_000",
        "nan",
        ".inf",
        "-inf",
        "2020-01-01",
    ),
    *("=", "<<", "!x", "&a", "*a", "%", "@", "`", "-", "- a", "?", "a: b", "a #b", "'q'", '"', "\\", "a\nb", "tab\t"),
    *("x" * 300, "word " * 60, "  lead", "trail ", "é漢😀", "\x85", "\u2028", "\0", "${model.width}"),
]


def theirs(config: Config) -> str:
    values = OmegaConf.to_container(OmegaConf.structured(config))
    assert isinstance(values, dict)
    if config.task is None:
        del values["task"]
    if not config.probes:
        del values["probes"]
    return OmegaConf.to_yaml(values)


@pytest.mark.parametrize("name", [name for name in presets() if not name.startswith(("finetune/study/", "scaling/"))])
def test_presets(name: str) -> None:
    """All but studies, which have keys of their own."""
    task = ["task.path=x", "task.sts=y"] if name.startswith("finetune/") else []
    base = ["finetune/cola"] if name == "finetune/text" else []  # how a task is done, not which
    config = load([*base, name], ["run.name=x", *task])
    assert to_yaml(config) == theirs(config)


def test_odd_texts() -> None:
    odd = dataclasses.replace(Config(), tracking=dataclasses.replace(Config().tracking, tags=ODD))
    assert to_yaml(odd) == theirs(odd)
    mapping = {text: text for text in ODD if text and "$" not in text}
    assert as_yaml({"a": mapping}) == OmegaConf.to_yaml({"a": mapping})


def test_whole_numbers_where_others_are_meant_free_mappings_and_sources() -> None:
    arguments = [
        "data.path=[{path: a, weight: 2}, {path: b}]",
        "slurm.environment={A: '1', B: 'x y'}",
        "probes=[{name: cola, path: x}]",
        "parallel.deepspeed={wall_clock_breakdown: true}",
        "train.epochs=2",
        "tracking.tags=[a, '1e5']",
    ]
    config = load([], arguments)
    assert to_yaml(config) == theirs(config)
    whole = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, lr=1, betas=[0, 1]))
    assert to_yaml(whole) == theirs(whole)
    assert plain(Config, whole)["optimizer"]["betas"] == [0.0, 1.0]
