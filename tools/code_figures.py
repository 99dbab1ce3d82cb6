"""How large is the code, and through how much of it does a training step go? Prints a figure a line, as `what: value`.

    python -m tools.code_figures DATA

DATA is a dataset folder, on which the default model takes seven steps on one rank. Looked at are steps 3 to 6, which
neither evaluate nor save. Lines are those of the files, blank ones included; lines of code are neither blank nor
comments.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from gpt1_ds.engine.deepspeed.register import RELIED_ON
from gpt1_ds.launcher import launch
from tools import runs

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gpt1_ds"
SMALL = 50  # lines of code
STEPS = range(3, 7)
SUBJECTLESS = ("Of ", "Those ", "None ", "Nobody ")  # beginnings of docstrings


def figures() -> Iterator[tuple[str, object]]:
    """Yields what reading the code tells."""
    texts = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    trees = [ast.parse(text) for text in texts.values()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    lines = sum(text.count("\n") for text in texts.values())
    yield "lines of the package", lines
    yield "files of the package", len(texts)
    yield f"files of at most {SMALL} lines of code", sum(len(_code(text)) <= SMALL for text in texts.values())
    spans = (_span(node) for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))
    yield "imports, share of all lines", f"{sum(spans) / lines:.1%}"
    for folder in ("tests", "tools"):
        yield f"lines of {folder}", sum(path.read_text().count("\n") for path in (ROOT / folder).rglob("*.py"))
    names = Counter(path.name for path in texts if path.name != "__init__.py")
    yield "file names that occur more than once", sum(count > 1 for count in names.values())
    classes = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    yield "class names that occur more than once", sum(count > 1 for count in classes.values())
    documented = [node for node in nodes if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    docstrings = list(filter(None, map(ast.get_docstring, documented)))
    subjectless = sum(text.startswith(SUBJECTLESS) for text in docstrings)
    yield "docstrings without a subject", f"{subjectless} of {len(docstrings)}"
    yield "comments", sum(len(re.findall(r"(?m)^\s*# |  # ", text)) for text in texts.values())
    compared = sum(_asks_kind(node) for path, tree in zip(texts, trees, strict=True) for node in _outside(path, tree))
    yield "comparisons with task.kind outside of tasks/kinds", compared
    replaced = [one for one in RELIED_ON if one.level != "reach"]
    yield "places of DeepSpeed, Megatron and torch that are patched", len(replaced)
    yield "private names relied on", sum(len(one.names) for one in RELIED_ON)
    deepspeed = [text for path, text in texts.items() if path.parent.name == "deepspeed"]
    yield "lines of engine/deepspeed", f"{sum(text.count(chr(10)) for text in deepspeed)} in {len(deepspeed)} files"


def _code(text: str) -> list[str]:
    """The lines that are neither blank nor comments alone; docstrings count."""
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _outside(path: Path, tree: ast.Module) -> Iterator[ast.AST]:
    return iter(()) if path.parent.name == "kinds" else ast.walk(tree)


def _asks_kind(node: ast.AST) -> bool:
    sides = (node.left, *node.comparators) if isinstance(node, ast.Compare) else ()
    return any(ast.unparse(side).endswith("task.kind") for side in sides)


def _span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def entered(arguments: list[str]) -> set[tuple[str, str]]:
    """Runs on the rank: (file, function) of the package that the steps of STEPS enter, by any thread."""
    from gpt1_ds.training.pretraining import pretrain
    from gpt1_ds.training.trainer import Trainer

    found: set[tuple[str, str]] = set()
    step_of = Trainer._step

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            found.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    def step(self: Trainer, number: int) -> Any:
        profile = note if number in STEPS else None
        threading.setprofile(profile)  # type: ignore[arg-type]  # of threads that start from here on
        sys.setprofile(profile)
        try:
            return step_of(self, number)
        finally:
            sys.setprofile(None)

    Trainer._step = step  # type: ignore[method-assign]
    assert pretrain(runs.configuration(arguments)) == 0
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    options = parser.parse_args()
    for what, value in figures():
        print(f"{what}: {value}")
    with tempfile.TemporaryDirectory() as scratch:
        arguments = [f"data.path={options.data.absolute()}", f"run.dir={scratch}", f"train.steps={STEPS.stop}"]
        (found,) = launch.run("tools.code_figures:entered", ([*arguments, "checkpoint.every=100"],), 1)
    files = {file for file, _ in found}
    of_model = {file for file in files if "/gpt1_ds/model/" in file}
    print(f"files that a training step enters: {len(files)}, with {len(found)} functions")
    lines = sum(Path(file).read_text().count("\n") for file in of_model)
    print(f"files of model/ that a training step enters: {len(of_model)}, of {lines} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
