"""Points of a CSV, what is said about those that are none, and the noise floor of seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.scaling.points import Point, noise_floor, read_points, without_repetition


def points_of(folder: Path, text: str) -> Path:
    file = folder / "points.csv"
    file.write_text(text)
    return file


def assert_refused(folder: Path, text: str, *words: str) -> None:
    file = points_of(folder, text)
    with pytest.raises(DataError) as refused:
        read_points(file)
    assert len(refused.value.problems) == 1
    line = str(refused.value)
    assert "\n" not in line
    for word in (str(file), *words):
        assert word in line


def test_columns_of_other_people_are_enough(tmp_path: Path) -> None:
    points = read_points(points_of(tmp_path, "\ufeffN, D, Loss\n1e7, 1e9, 3.5\n2e7,1e9,3.25\n"))
    assert [(point.n, point.d, point.u, point.loss) for point in points.rows] == [
        (1e7, 1e9, 1e9, 3.5),
        (2e7, 1e9, 1e9, 3.25),
    ]
    assert [point.cell for point in points.rows] == ["row 2", "row 3"]
    assert points.convention is None
    assert points.rows[0].compute == 6e16


def test_columns_of_a_study(tmp_path: Path) -> None:
    head = "cell,kind,seed,schedule,n_all,n_matrices_head,n,d,u,flops,loss,held_out,outcome\n"
    rows = [
        "a,ladder,1,cosine,30,20,20,100,100,7,3.0,0,done",
        "b,ladder,2,cosine,30,20,20,400,100,9,2.5,1,done",
        "c,ladder,2,cosine,30,20,20,400,100,9,nan,0,diverged",
        "d,ladder,2,cosine,30,20,20,400,100,,,0,waiting",
        "e,shape,2,cosine,30,20,20,400,100,9,2.9,0,done",
    ]
    points = read_points(points_of(tmp_path, head + "\n".join(rows)))
    assert [point.cell for point in points.fitted] == ["a"]
    assert [point.cell for point in points.rows if point.held_out] == ["b"]
    assert points.left_out == {"diverged": 1, "waiting": 1, "of kind shape": 1}
    assert (points.convention, points.schedule) == ("matrices_head", "cosine")
    assert points.rows[0].compute == 7
    assert points.rows[1].epochs == 4


def test_worse_learning_rates_are_left_out(tmp_path: Path) -> None:
    rows = ["a,10,20,3.0,0", "b,10,20,2.9,1", "d,10,20,3.2,", "e,10,40,2.7,1"]
    points = read_points(points_of(tmp_path, "cell,n,d,loss,best_rate\n" + "\n".join(rows)))
    assert [point.cell for point in points.rows] == ["b", "d", "e"]
    assert points.left_out == {"with a worse learning rate": 1}


def test_more_than_four_epochs_are_for_the_repeated_form(tmp_path: Path) -> None:
    points = without_repetition(read_points(points_of(tmp_path, "n,d,u,loss\n10,40,10,3\n10,50,10,2.9\n")))
    assert [point.d for point in points.rows] == [40]
    assert list(points.left_out.values()) == [1]


def test_text_in_a_number(tmp_path: Path) -> None:
    assert_refused(
        tmp_path, "n,d,loss\n1,2,3\n1,2,3.1o\n", "row 3, column loss", "'3.1o' is not a number", "correct it"
    )


def test_an_empty_loss(tmp_path: Path) -> None:
    assert_refused(
        tmp_path, "n,d,loss\n1,2,\n", "row 2, column loss", "empty is not a positive number", "outcome=failed"
    )


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "1e-12", "1e-320", "1e300"])
def test_a_loss_that_is_none(tmp_path: Path, value: str) -> None:
    assert_refused(tmp_path, f"n,d,loss,outcome\n1,2,{value},done\n", "row 2, column loss", value, "outcome=failed")


def test_two_cells_of_one_name(tmp_path: Path) -> None:
    text = "cell,n,d,loss\na,1,2,3\nb,1,4,3\na,1,5,3\n"
    assert_refused(tmp_path, text, "rows 2 and 4", "column cell", "'a' names two cells", "rename")


def test_a_missing_column(tmp_path: Path) -> None:
    assert_refused(tmp_path, "params,d,loss\n1,2,3\n", "no column n among params, d, loss", "name them so")


def test_no_points(tmp_path: Path) -> None:
    assert_refused(tmp_path, "n,d,loss\n", "no point")
    assert_refused(tmp_path, "", "no column n, d, loss among nothing")
    assert_refused(tmp_path, "n,d,loss,outcome\n1,2,,failed\n", "no point to fit: left out 1 failed", "run the study")


def test_a_torn_row(tmp_path: Path) -> None:
    assert_refused(tmp_path, "n,d,loss\n1,2\n", "row 2 has not 3 values")
    assert_refused(tmp_path, "n,d,loss\n1,2,3,4\n", "row 2 has not 3 values")


def test_held_out_is_0_or_1(tmp_path: Path) -> None:
    assert_refused(tmp_path, "n,d,loss,held_out\n1,2,3,maybe\n", "row 2, column held_out", "'maybe'", "write one")


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.csv: is not here; name a CSV"):
        read_points(tmp_path / "nowhere.csv")
    (tmp_path / "points.csv").write_bytes(b"\xff\xfe\x00\x01\xd8")
    with pytest.raises(DataError, match="is not a CSV of text"):
        read_points(tmp_path / "points.csv")
    with pytest.raises(DataError, match="is not a CSV of text"):
        read_points(tmp_path)


def test_many_problems_are_told_and_then_counted(tmp_path: Path) -> None:
    file = points_of(tmp_path, "n,d,loss\n" + "x,2,3\n" * 8)
    with pytest.raises(DataError) as refused:
        read_points(file)
    assert len(refused.value.problems) == 6
    assert refused.value.problems[-1] == f"{file}: and 3 more problems like these"


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    assert_refused(tmp_path, "N,D,loss,n\n1e6,1e8,3.5,2e6\n", "two columns are named n (in small letters); rename one")


def test_noise_floor_is_pooled_over_seeds() -> None:
    rows = [
        ("a", 1.0, "1", 2.0),
        ("b", 1.0, "2", 2.02),
        ("c", 2.0, "1", 3.0),
        ("d", 3.0, "1", 3.0),
        ("e", 3.0, "2", 3.06),
    ]
    points = [Point(cell, n, 9.0, 9.0, loss, seed=seed) for cell, n, seed, loss in rows]
    found = noise_floor(points)
    assert found is not None
    expected = np.sqrt((2 * (0.01 / 2.01) ** 2 + 2 * (0.03 / 3.03) ** 2) / 2)
    assert found == {"relative_std": pytest.approx(expected), "groups": 2, "runs": 4}
    assert noise_floor(points[2:4]) is None
