"""The YAML file of a study: read into a dataclass, with every problem of the file at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config.layers import read_file
from gpt1_ds.config.load import first_line
from gpt1_ds.config.values import refuse_resolvers


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """What every kind of study has."""

    name: str = ""  # the study's folder is <run.dir>/<name>; empty: the file's stem
    overrides: list[str] = field(default_factory=list)  # key=value overrides for every cell
    jobs: int = 1  # cells that run at a time; the cores are divided among them
    nproc: int = 1  # ranks of a cell
    tries: int = 2  # of a cell that fails for a reason that may pass
    keep_checkpoints: bool = False  # false: a finished cell keeps its metrics, scores and logs only

    def problems(self) -> Iterator[str]:
        if not re.fullmatch(r"[\w.-]+", self.name) or self.name in (".", ".."):
            yield f"name={self.name!r} cannot name a folder; use letters, digits, '.', '_' and '-'"
        for key in ("jobs", "nproc", "tries"):
            if getattr(self, key) < 1:
                yield f"{key}={getattr(self, key)} is too small; it must be at least 1"


T = TypeVar("T", bound=StudySettings)


def read_study(kind: type[T], name: str, typed: Callable[[str, Any], Any]) -> T:
    """Returns the file or shipped preset `name` as a `kind`; `typed` turns a key's value into what its field wants.

    Raises ConfigError naming every problem.
    """
    layer = read_file(name)
    found: list[str] = []
    merged = OmegaConf.structured(kind)
    for key, value in layer.values.items():
        try:
            refuse_resolvers(value)
            if key in merged and OmegaConf.get_type(merged, key) is dict:
                with read_write(merged):
                    merged[key] = {}  # names of the file's own, not besides those of the default
            merged = OmegaConf.merge(merged, {key: typed(str(key), value)})
        except (OmegaConfBaseException, ValueError, TypeError) as error:
            found.append(f"{layer.origin}: {key}: {first_line(error)}")
    ConfigError.raise_all(found)
    study = OmegaConf.to_object(merged)
    assert isinstance(study, kind)
    if not study.name:
        study = replace(study, name=Path(layer.origin).stem)
    ConfigError.raise_all(f"{layer.origin}: {problem}" for problem in study.problems())
    return study


def refuse_keys(own: Collection[str], overrides: Sequence[str]) -> None:
    """Raises ConfigError for the command line's `overrides` of keys that a study sets itself."""
    keys = (override.partition("=")[0] for override in overrides)
    ConfigError.raise_all(
        f"{key} is set by the study for every cell; leave it out" for key in dict.fromkeys(keys) if key in own
    )


def jobs_at_a_time(study: StudySettings, asked: int | None) -> int:
    """Returns the option --jobs where it is given, else the study's. Raises ConfigError."""
    jobs = study.jobs if asked is None else asked
    if jobs < 1:
        raise ConfigError(f"--jobs={jobs}: at least 1 cell runs at a time")
    return jobs
