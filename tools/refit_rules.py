"""Fits the simple rules of a fine-tuning study anew, those that the program knows now, and draws its page again.

    python tools/refit_rules.py RUNS/STUDY [--data FOLDER]

FOLDER is where the paths of the study's tasks begin, as the study's own working folder did (default: here). Every rule
reads the examples that the study's cells read; the answers must be those that the study knows, else nothing is
written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import write_json
from gpt1_ds.config.load import load_recorded
from gpt1_ds.report.study_page import write_study
from gpt1_ds.report.study_results import read_study_results
from gpt1_ds.sweep.finetuning_trials import FILE, fitted_controls
from gpt1_ds.tasks.reading import read_task
from tools.mistakes import told


def refit(study: Path) -> None:
    """Rewrites the study's controls.json. Raises DataError where a task's examples are others than the study's."""
    known = json.loads((study / FILE).read_text())
    cells = {task: cell for (task, _, _), cell in read_study_results(study).cells.items()}
    for name, before in known.items():
        task = load_recorded(cells[name] / "config.yaml").task
        assert task is not None, "a cell of such a study has a task"
        entry = json.loads(json.dumps(fitted_controls(read_task(task))))
        for split, known_split in before["answers"].items():
            if any(known_split[key] != entry["answers"][split][key] for key in ("ids", "gold")):
                raise DataError(f"{task.path}: {split} of {name} has other examples than the study; give it the same")
        known[name] = entry
        print(f"{name}: {', '.join(dict.fromkeys(score['control'] for score in entry['scores']))}", flush=True)
    write_json(study / FILE, known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--data", type=Path, default=Path())
    options = parser.parse_args()
    study = options.study.resolve()
    os.chdir(options.data)
    with told():
        refit(study)
        write_study(study)


if __name__ == "__main__":
    main()
