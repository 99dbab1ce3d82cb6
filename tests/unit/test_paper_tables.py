"""The paper's tables with a study's scores: what is printed, and what is ours, stands in the right column."""

from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.scaling.tables import read_table
from tools.paper_tables import COLUMNS, tables

RESULTS = """task,variant,seed,split,metric,value
cola,full,1,dev,matthews,0.9
cola,full,1,half,matthews,0.1
cola,full,2,half,matthews,0.3
cola,full,1,half,accuracy,0.7
mnli,full,1,test,accuracy,0.5
mnli,full,1,test_mm,accuracy,0.45
mnli,majority,,test,accuracy,0.33
copa,no pre-training,1,half,accuracy,
copa,full,1,half,accuracy,0.52
"""


def lines(tmp_path: Path, text: str = RESULTS) -> list[str]:
    path = tmp_path / "results.csv"
    path.write_text(text)
    return tables(read_table(path, COLUMNS)).splitlines()


def test_scores_of_what_chose_nothing_below_the_printed_ones(tmp_path: Path) -> None:
    found = lines(tmp_path)
    assert "| full | 50.0 | 45.0 | 47.5 |  |  |  |  |" in found, "MNLI matched, mismatched, their mean"
    assert "| majority |  |  | 33.0 |  |  |  |  |" in found, "one file may hold both"
    assert "| *the paper's transformer* | *82.1* | *81.4* | *81.8* | *89.9* | *88.3* | *88.1* | *56.0* |" in found
    assert "| full |  |  |  |  |  | 52.0 |" in found, "COPA"
    assert "| full | 20.0 |  |  |  |  |" in found, "CoLA: two seeds, of the half that chose nothing"
    assert "| full | 20.0 |  |  |  |  | 47.5 |  |  |" in found, "Table 5"
    assert "| *the paper: LSTM* | *30.3* | *90.5* | *83.2* | *71.8* | *68.1* | *73.7* | *81.1* | *54.6* |" in found
    assert not any(line.startswith("| no pre-training") for line in found), "it has no score"
    table = found[: found.index("**Table 3: questions with choices**")]
    assert [line.split("|")[1].strip() for line in table if line.startswith("| ")][-1] == "majority", "controls last"


def test_scores_are_in_the_metric_of_the_paper(tmp_path: Path) -> None:
    """Accuracy of MRPC and QQP stood below the paper's F1."""
    of_both = "".join(
        f"{task},full,1,half,{metric}\n" for task in ("mrpc", "qqp") for metric in ("f1,0.8", "accuracy,0.7")
    )
    assert "| full | 20.0 |  | 80.0 |  | 80.0 |" in lines(tmp_path, RESULTS + of_both), "Table 4"
    assert "| full | 20.0 |  | 80.0 |  | 80.0 | 47.5 |  |  |" in lines(tmp_path, RESULTS + of_both), "Table 5"


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column seed, split, metric"):
        lines(tmp_path, "task,variant,value\na,b,1\n")
