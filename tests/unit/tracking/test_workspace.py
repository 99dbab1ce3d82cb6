"""The view of a W&B project that `tracking workspace` adds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpt1_ds.cli import main
from gpt1_ds.common import errors
from gpt1_ds.tracking import workspace
from tests.helpers.wandb_server import serving


def keys(spec: Any) -> set[str]:
    """All texts of a specification."""
    if isinstance(spec, dict):
        return set().union(*map(keys, spec.values()), spec)
    if isinstance(spec, list):
        return set().union(*map(keys, spec))
    return {spec} if isinstance(spec, str) else set()


def test_a_server_takes_the_panels_of_runs_and_studies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        assert main(["tracking", "workspace", "--entity", "someone", "--project", "p", "--name", "all"]) == 0
    (view,) = server.views
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("someone", "p", "all")
    assert capsys.readouterr().out.startswith(f"{server.address}/someone/p?nw=")
    sections = view["spec"]["section"]["panelBankConfig"]["sections"]
    named = {section["name"]: keys(section["panels"]) for section in sections}
    assert {"tokens", "train/loss", "eval/loss"} <= named["Training"]
    assert {"config:N.value", "config:D.value", "summary:final/held_out_loss"} <= named["Scaling: cells"]
    assert {"figures/compute", "figures/bootstrap"} <= named["Scaling: the fit"]
    assert "fit/alpha" in json.dumps(sorted(named["Scaling: the fit"]))


def test_without_the_package_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "PACKAGE", "wandb_workspaces_that_nobody_has")
    with pytest.raises(errors.UserError, match=r"pip install 'gpt1-ds\[tracking\]'"):
        workspace.save("someone", "p", "all", [])
