"""configs/README.md says what the code says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from gpt1_ds.config import Config, reference
from tools import config_reference


def test_the_page_is_up_to_date() -> None:
    stale = "configs/README.md is stale; run python tools/config_reference.py"
    assert config_reference.PAGE.read_text() == config_reference.page(), stale


def test_every_key_is_there() -> None:
    text = config_reference.PAGE.read_text()
    for section, values in OmegaConf.to_container(OmegaConf.structured(Config())).items():  # type: ignore[union-attr]
        for key in values or ():
            assert f"`{section}.{key}`" in text


def test_a_field_without_a_comment_is_refused() -> None:
    @dataclasses.dataclass
    class Silent:
        key: int = 1

    with pytest.raises(LookupError, match="key: no comment"):
        list(reference.keys(Silent, ""))


def test_every_preset_is_there() -> None:
    root = config_reference.ROOT / "configs"
    wanted = {Path(path).relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml")}
    assert {name for name, _ in reference.described_presets()} == wanted
    assert all(about for _, about in reference.described_presets())
