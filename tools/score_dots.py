"""Draws scores of a table: a panel for each task or set, a line for each row, a dot for each of its scores.

    python tools/score_dots.py RESULTS.csv --panel set --row row --value spearman --out scores.png

The options name columns. A value is drawn x 100 where all of them are at most 1; `--error` names a column with its
standard error, which is drawn as a bar.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.report import figures
from gpt1_ds.scaling.tables import CsvRow, read_table
from tools.mistakes import told

BESIDE = 3  # panels


def draw(table: Sequence[CsvRow], panel: str, row: str, value: str, error: str = "") -> Any:
    """Returns a matplotlib figure. Raises UserError where matplotlib is not installed, DataError for text in a number's
    place.
    """
    figures.set_up()
    from matplotlib.figure import Figure

    panels, names = (list(dict.fromkeys(line.text(column) for line in table)) for column in (panel, row))
    scale = 100 if all(abs(line.number(value) or 0) <= 1 for line in table) else 1
    lines = math.ceil(len(panels) / BESIDE)
    size = (2.0 + 2.6 * min(BESIDE, len(panels)), lines * (0.8 + 0.27 * len(names)))
    figure = Figure(figsize=size, layout="constrained")
    drawn = figure.subplots(lines, min(BESIDE, len(panels)), sharey=True, squeeze=False)
    for axes in drawn.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, title in zip(drawn.flat, panels, strict=False):
        for line in table:
            if line.text(panel) == title and (score := line.number(value)) is not None:
                width = (line.number(error) or 0.0) if error else 0.0
                at = names.index(line.text(row))
                axes.errorbar(
                    [scale * score], [at], xerr=[scale * width], color="C0", marker="o", ms=4, capsize=2 * bool(width)
                )
        axes.set_title(title)
        axes.set_xlabel(f"{value.replace('_', ' ')} x 100")
        axes.grid(alpha=0.25)
    drawn[0, 0].set_yticks(range(len(names)), names)
    drawn[0, 0].set_ylim(len(names) - 0.5, -0.5)  # the first row on top
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, metavar="RESULTS.csv")
    for name in ("panel", "row", "value"):
        parser.add_argument(f"--{name}", required=True, metavar="COLUMN")
    parser.add_argument("--error", default="", metavar="COLUMN")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    columns = [name for name in (options.panel, options.row, options.value, options.error) if name]
    with told():
        table = read_table(options.table, columns)
        draw(table, options.panel, options.row, options.value, options.error).savefig(options.out, dpi=130)


if __name__ == "__main__":
    main()
