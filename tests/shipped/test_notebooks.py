"""The notebooks of the guides: shipped without outputs, and executed from the first cell to the last."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.helpers.documents import ROOT

NOTEBOOKS = sorted((ROOT / "gpt1_ds" / "guides").glob("*.ipynb"))
SAYS = {  # what a reader must find in the outputs
    "first-steps": ["done after step 120", "held-out loss", "nats  The value is returned.", "Did you mean: 'lr'?"],
    "reading-a-study": ["runs/rates-sweep: 6 cells, 6 done, 0 to do", "apart", "runs/rates-sweep/lr-"],
}


def test_both_are_here() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(SAYS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_stored(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    assert not [line for cell in notebook.cells for line in cell.source.splitlines() if len(line) > 120]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))  # nothing of a person's own counts
    notebook = nbformat.read(path, as_version=4)
    (tmp_path / "here").mkdir()
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path / "here")}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    texts = [str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", "")) for output in outputs]
    for arguments in SAYS[path.stem]:
        assert arguments in "\n".join(texts), "\n".join(texts)
    assert any("image/png" in output.get("data", {}) for output in outputs), "a figure is shown"
