"""The list of zero-shot probes: there where it is named only, and told of its mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import ProbeConfig, load, to_yaml
from gpt1_ds.training import resume


def problems(*arguments: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load([], arguments)
    return caught.value.problems


def test_it_is_saved_where_there_are_probes_only(tmp_path: Path) -> None:
    assert load().probes == []
    assert "probes" not in to_yaml(load())
    config = load([], ["probes=[{name: cola, path: 012, limit: 1k, train_limit: null}, {name: pdp, path: no}]"])
    assert config.probes == [ProbeConfig(name="cola", path="012", limit=1000), ProbeConfig(name="pdp", path="no")]
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    assert load([str(tmp_path / "c.yaml")], ["run.name=run"]) == config
    assert load([str(tmp_path / "c.yaml")], ["run.name=run", "probes=[]"]) == load()


def test_a_run_may_go_on_with_other_probes() -> None:
    resume.check("runs/x", resume.changes(load(), load(["evaluate/zeroshot"])))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("[{name: cla, path: x}]", "probes: name=cla is no zero-shot probe; choose cola, sst2"),
        ("[{name: cola}]", "probes: cola has no path; name the folder"),
        ("cola", "probes: cola has no path"),
        ("[{name: cola, path: x, limit: 0}]", "probes: limit=0 of cola must be at least 1"),
        ("[{name: cola, path: x, train_limit: -1}]", "probes: train_limit=-1 of cola"),
        ("[{name: cola, path: x}, {name: cola, path: y}]", "probes: cola is there 2 times"),
        (
            "[{name: sst2, path: x, template: it was, answers: [a, b]}]",
            "template='it was' of sst2 has no {text}",
        ),
        (
            "[{name: sst2, path: x, template: '{text}', answers: [a]}]",
            "answers=['a'] of sst2 must be two or more",
        ),
        ("[{name: sst2, path: x, template: '{text}', answers: [a, a]}]", "of sst2 must be two or more different ones"),
        ("[{nam: cola, path: x}]", "Did you mean: 'name'?"),
        ("[{name: cola, path: x, limit: many}]", "probes: Value 'many'"),
        ("[{name: cola, path: '${oc.env:HOME}'}]", "resolvers are off"),
        ("[[cola]]", "probes"),
        ("{cola: x}", "probes"),
    ],
)
def test_mistakes(value: str, says: str) -> None:
    (line,) = problems(f"probes={value}")
    assert says in line
