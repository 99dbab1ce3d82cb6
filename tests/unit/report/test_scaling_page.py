"""The page of a scaling study is made from its folder's files alone, and says what they do not hold."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.common.errors import DataError, UserError
from gpt1_ds.report.scaling_axes import law_cells
from gpt1_ds.report.scaling_page import FIGURES, write_scaling_report
from gpt1_ds.report.scaling_results import Cell, read_scaling_results
from gpt1_ds.report.scaling_tables import held_out, overview, warnings
from gpt1_ds.scaling.tables import COLUMNS
from tests.helpers.scaling_study import make_study, read_results, write_results

LIMIT = 5_000_000  # bytes of a page


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study's folder with its page."""
    folder = make_study(tmp_path_factory.mktemp("runs") / "<b>ladder")
    write_scaling_report(folder)
    return folder


def assert_figures(page: str, names: set[str]) -> None:
    assert set(re.findall(r'<figure id="(\w+)"><svg', page)) == names
    assert page.count("</svg>") == len(names)


def change_fit(folder: Path, **changes: Any) -> None:
    told = json.loads((folder / "fit.json").read_text())
    (folder / "fit.json").write_text(json.dumps({**told, **changes}))


def plain_points(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "results.csv").write_text("n,d,loss\n" + text)
    return folder


GRID = "".join(f"{n},{d},{1.7 + 400 / n**0.34 + 400 / d**0.3}\n" for n in (1e6, 4e6, 2e7) for d in (1e8, 5e8, 4e9))


def test_a_complete_study_has_every_figure(complete: Path) -> None:
    page = (complete / "report.html").read_text()
    assert_figures(page, set(FIGURES))
    for name in FIGURES:
        assert (complete / "figures" / f"{name}.png").stat().st_size > 5_000
        assert (complete / "figures" / f"{name}.svg").read_text().startswith("<?xml")
    assert len(page.encode()) < LIMIT


def test_a_studys_columns_are_those_that_collect_writes(complete: Path) -> None:
    assert list(read_results(complete)[0]) == list(COLUMNS)
    assert set(Cell.__dataclass_fields__) <= set(COLUMNS), "every field is read from a column"


def test_the_page_needs_nothing_from_elsewhere(complete: Path) -> None:
    page = (complete / "report.html").read_text()
    assert "<script" not in page
    assert "<b>ladder" not in page, "text is text"
    loaded = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert [address for address in loaded if not address.startswith(("#", "data:"))] == []


def test_every_caption_says_the_convention_the_schedule_and_what_is_left_out(complete: Path) -> None:
    page = (complete / "report.html").read_text()
    notes = re.findall(r"<small>(.*?)</small>", page)
    assert len(notes) == len(FIGURES)
    for note in notes:
        assert note.startswith("N: weights of matrix products, head included. Schedule: cosine. ")
        assert re.search(r"\d+ cells; not shown: .*1 waiting", note), note


def test_numbers_stand_beside_what_they_are_worth(complete: Path) -> None:
    page = (complete / "report.html").read_text()
    warnings = page[page.index('id="warnings"') : page.index('id="overview"')]
    assert "2 warnings about the fit" in warnings
    assert "wide &lt;E/2&gt;" in warnings
    parameters = page[page.index('id="parameters"') : page.index('id="quality"')]
    assert "<td>alpha</td><td>0.34</td><td>0.3" in parameters
    assert parameters.index("alpha") < parameters.index("hardly identified")
    assert "<td>cells not fitted: of kind shape</td><td>4</td>" in page
    held_out = page[page.index("Held-out cells") : page.index("Loss against compute")]
    assert "Noise floor between seeds: 0.25 % (standard deviation; 12 runs in 4 groups)" in held_out
    assert held_out.count("L12-D") == 2
    (told,) = [row for row in json.loads((complete / "fit.json").read_text())["held_out"] if "64M" in row["cell"]]
    assert f"<td>{told['error_percent']:+.2f} %</td><td>{abs(told['error_percent']) / 0.25:.1f} x</td>" in held_out


def test_a_run_is_judged_with_the_noise_of_one_run(tmp_path: Path) -> None:
    """Of runs of a law that fits, a fifth was said to lie outside of its 95 % interval, which is that of the law."""
    folder = make_study(tmp_path / "study", runs=False, downstream=False)
    cell = {"n": 1e6, "d": 1e8, "predicted": 3.0, "error_percent": 0.0, "interval": [2.98, 3.01]}
    losses = (2.955, 2.97, 3.02, 3.03, 3.05)
    change_fit(folder, held_out=[{**cell, "cell": str(loss), "loss": loss} for loss in losses], fit_noise_percent=9.0)

    def told(**changes: Any) -> list[str]:
        change_fit(folder, **changes)
        return [row[-1] for row in held_out(read_scaling_results(folder))]

    between_seeds = {"relative_std": 0.005, "runs": 4, "groups": 2}
    assert told(noise=between_seeds) == ["no", "yes", "yes", "yes", "no"]
    assert told(noise=None, fit_noise_percent=0.5) == ["no", "yes", "yes", "yes", "no"], "what the fit misses"
    assert told(fit_noise_percent=0.0) == ["no", "no", "no", "no", "no"]


def test_steps_of_a_trunk_count_law_cells(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "study", runs=False, downstream=False, fit=False)
    cells = [{**cell, "flops": "1e15", "own_share": "1.0"} for cell in read_results(folder)[:4]]
    write_results(folder, cells)
    assert dict(overview(read_scaling_results(folder)))["compute"] == "4·10¹⁵ FLOPs in the cells that are done"
    write_results(
        folder, [{**cell, "own_share": share} for cell, share in zip(cells, (1, 0.25, 0.25, ""), strict=True)]
    )
    words = "2.5·10¹⁵ FLOPs in the cells that are done; a branch without its trunk's FLOPs"
    assert dict(overview(read_scaling_results(folder)))["compute"] == words


def test_cells_that_did_not_finish_are_named_with_why(complete: Path) -> None:
    page = (complete / "report.html").read_text()
    left = page[page.index('id="unfinished"') : page.index('id="cells"')]
    assert re.findall(r'<span class="(\w+)">', left) == ["diverged", "diverged", "dominated", "failed", "waiting"]
    for words in ("loss is not finite", "above the ladder by 12 %", "killed, signal 9", "L10-D128M-s1"):
        assert words in left
    table = page[page.index('id="cells"') :]
    assert table.count('<span class="done">done</span>') == 53
    assert table.count("<tr>") == 59
    assert "58: 53 done, 2 diverged, 1 dominated, 1 failed, 1 waiting" in page


def test_without_a_fit_the_page_says_so(complete: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(complete, tmp_path / "study")
    (folder / "fit.json").unlink()
    (folder / "predictions.csv").unlink()
    page = write_scaling_report(folder).read_text()
    assert_figures(page, set(FIGURES) - {"fit", "residuals", "bootstrap"})
    assert "No law has been fitted (no fit.json): `gpt1-ds scaling fit STUDY`." in page
    assert "No figure &ldquo;Residuals&rdquo;: no predictions.csv" in page
    assert 'id="parameters"' not in page
    assert "the study has no fit yet" in page
    assert not (folder / "figures" / "fit.png").exists(), "an old figure would tell an old story"
    assert (folder / "figures" / "compute.png").exists()


def test_a_fit_of_other_results_is_called_out(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "study", runs=False, downstream=False)

    def warned() -> str:
        return " ".join(warnings(read_scaling_results(folder)))

    digest = hashlib.sha256((folder / "results.csv").read_bytes()).hexdigest()
    change_fit(folder, data={"file": "results.csv", "sha256": digest})
    assert "another results.csv" not in warned()
    change_fit(folder, data={"file": "results.csv", "sha256": "0" * 64})
    assert "another results.csv" in warned()


def test_what_the_runs_do_not_fix_is_a_bound_and_no_alarm(complete: Path, tmp_path: Path) -> None:
    assert 'id="limits"' not in (complete / "report.html").read_text(), "E is known there"
    folder = make_study(tmp_path / "study", runs=False, downstream=False)
    told = json.loads((folder / "fit.json").read_text())
    samples = {**told["bootstrap"]["samples"], "E": [number / 500 for number in range(1000)]}
    others = ["only 3 of 5 starts reached the best objective: there may be a better one", "at a bound: E, alpha; the"]
    about_E = ["implausible E = 0.900: its 95 % interval", "E moves by 40 % when", "at a bound: E; the points do not"]
    change_fit(
        folder,
        E=0.9,
        warnings=[*about_E, *others],
        intervals={**told["intervals"], "E": [0.05, 1.95]},
        bootstrap={**told["bootstrap"], "samples": samples},
    )
    page = write_scaling_report(folder).read_text()
    limits = page[page.index('id="limits"') : page.index('id="overview"')]
    assert "removes, is below 1.9 nats per token (95 %, one-sided)" in limits
    assert "do not extrapolate" in limits
    assert "<td>E</td><td>0.9</td><td>below 1.9</td>" in page
    assert warnings(read_scaling_results(folder)) == others
    change_fit(folder, E=4.0, intervals={**told["intervals"], "E": [3.9, 4.1]})
    assert warnings(read_scaling_results(folder)) == [*about_E, *others]


def test_points_of_other_people_are_enough(tmp_path: Path) -> None:
    page = write_scaling_report(plain_points(tmp_path / "points", GRID)).read_text()
    assert_figures(page, {"compute", "isoflop"})
    assert "C is 6 N D where results.csv gives none" in page
    assert "N: as given in results.csv (the convention is not recorded). Schedule: not recorded. 9 cells" in page
    for words in ("No cell is held out", "with several seeds", "Every cell of the study is done", "row 10"):
        assert words in page
    assert "learning rate</th>" not in page, "empty columns are left out"


def test_a_single_point_is_a_page(tmp_path: Path) -> None:
    page = write_scaling_report(plain_points(tmp_path / "one", "1e6,1e8,4\n")).read_text()
    assert_figures(page, {"compute"})
    assert "1 cell, all there are." in page


def test_names_are_not_formulas(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "study", downstream=False)
    cells = read_results(folder)
    for cell in cells:
        cell["arm"] = f"$\\{cell['arm']}$"
    cells[0]["cell"] = "<i>$x^$"
    write_results(folder, cells)
    predictions = (folder / "predictions.csv").read_text()
    (folder / "predictions.csv").write_text(predictions.replace("L4-D16M-s1,", "<i>$x^$,"))
    page = write_scaling_report(folder).read_text()
    assert "<i>" not in page
    assert "&lt;i&gt;$x^$" in page


@pytest.mark.slow
def test_a_thousand_cells_stay_under_the_limit(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "study")
    cells = read_results(folder)
    write_results(folder, [{**cell, "cell": f"{cell['cell']}-{copy}"} for copy in range(18) for cell in cells])
    page = write_scaling_report(folder)
    assert page.read_text().count('class="done"') == 18 * 53
    assert page.stat().st_size < LIMIT


def test_a_study_that_was_moved_finds_its_runs(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "study")
    moved = folder.rename(tmp_path / "elsewhere")
    study = read_scaling_results(moved)
    run = study.run_dir(study.cells[0])
    assert run is not None
    assert run.path == moved / study.cells[0].cell


def test_a_copy_of_a_study_shows_its_own_runs(tmp_path: Path) -> None:
    """Also where those that it was copied from are still there."""
    folder = make_study(tmp_path / "study", fit=False, downstream=False)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    study = read_scaling_results(copy)
    run = study.run_dir(study.cells[0])
    assert run is not None
    assert run.path == copy / study.cells[0].cell
    shutil.rmtree(run.path)
    other = study.run_dir(study.cells[0])
    assert other is not None
    assert other.path == folder / study.cells[0].cell


def edit(change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        cells = read_results(folder)
        change(cells)
        write_results(folder, cells)

    return apply


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "results.csv").unlink(), ["missing", "scaling collect"]),
        (
            edit(lambda cells: cells[1].update(cell=cells[0]["cell"])),
            ["rows 2 and 3, column cell", "'L4-D16M-s1' names two cells"],
        ),
        (
            edit(lambda cells: cells[1].update(loss="about 3")),
            ["results.csv: row 3, column loss: 'about 3' is not a number; correct it"],
        ),
        (edit(lambda cells: cells[2].update(n="-4")), ["row 4, column n: -4 is not a positive number; correct it"]),
        (edit(lambda cells: cells[2].update(d="")), ["row 4, column d: empty is not a positive number"]),
        (
            edit(lambda cells: cells[2].update(outcome="lost")),
            ["row 4, column outcome: 'lost' is none of done, diverged"],
        ),
        (lambda folder: change_fit(folder, format=2), ["format 2 is newer than 1"]),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path: Path, spoil: Callable[[Path], Any], words: list[str]) -> None:
    folder = make_study(tmp_path / "study", runs=False)
    spoil(folder)
    with pytest.raises(DataError) as error:
        write_scaling_report(folder)
    for word in words:
        assert word in str(error.value)
    assert not (folder / "report.html").exists()


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plain_points(tmp_path / "points", GRID)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"^matplotlib is not installed: pip install 'gpt1-ds\[scaling\]'$"):
        write_scaling_report(folder)


def test_what_people_write_for_yes_is_understood(tmp_path: Path) -> None:
    folder = tmp_path / "points"
    folder.mkdir()
    rows = "1e6, 1e8, 4, True, 0\n1e6, 1e9, 3.9, 0, 1\n2e6, 1e9, 3.8, , \n"
    (folder / "results.csv").write_text("N, D, loss, held_out, best_rate\n" + rows)
    cells = read_scaling_results(folder).cells
    assert [(cell.held_out, cell.best_rate) for cell in cells] == [(True, False), (False, True), (False, True)]
    assert [cell.d for cell in law_cells(read_scaling_results(folder))] == [1e9, 1e9]


def test_nothing_finished(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "study", runs=False, fit=False)
    edit(lambda cells: [cell.update(loss="", outcome="waiting") for cell in cells])(folder)
    edit(lambda cells: cells[0].update(loss="3.5", outcome="dominated"))(folder)
    with pytest.raises(DataError, match=r"no cell is done yet \(1 dominated, 57 waiting\); `gpt1-ds scaling run"):
        write_scaling_report(folder)


def test_a_loss_that_is_not_finite_is_none(tmp_path: Path) -> None:
    folder = plain_points(tmp_path / "points", GRID + "1e6,1e9,nan\n1e6,2e9,\n")
    study = read_scaling_results(folder)
    assert len(study.done) == 9
    assert [cell.outcome for cell in study.cells[-2:]] == ["waiting", "waiting"]
