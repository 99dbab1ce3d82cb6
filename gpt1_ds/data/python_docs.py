"""The corpus inside every Python: the language reference's topics and the docstrings of the standard library, read from
the source files without running them. It has a few megabytes, is the same for one version of Python, and needs no
network.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import platform
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

SKIPPED_FOLDERS = {"test", "tests", "idle_test", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
SHORTEST = 60  # characters; shorter docstrings say little more than their name
MOST_CODE = 0.4  # fraction of lines that are interactive examples; docstrings above it are not prose


def documents() -> Iterator[str]:
    """Yields one text per topic of the language reference, then one per module that has docstrings worth reading."""
    with contextlib.suppress(ImportError):  # some distributions leave it out
        from pydoc_data.topics import topics

        yield from (topics[name].strip() + "\n" for name in sorted(topics))
    for path in source_files():
        if text := "\n\n".join(_docstrings(path)):
            yield text + "\n"


def identity() -> str:
    """Returns a name of this corpus: the version of Python and a hash of the sizes of its files."""
    sizes = [(path.name, path.stat().st_size) for path in source_files()]
    return f"{platform.python_version()}-{hashlib.sha256(repr(sizes).encode()).hexdigest()[:16]}"


def source_files() -> list[Path]:
    """Returns the standard library's modules in the order of their paths, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in root.rglob("*.py") if not SKIPPED_FOLDERS & set(path.relative_to(root).parts[:-1])]
    return sorted(paths, key=lambda path: path.relative_to(root).parts)


def _docstrings(path: Path) -> Iterator[str]:
    """Yields the docstrings of a file in the order of its lines, without their indentation."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in other people's strings
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # a file for another version of Python
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "").strip()
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        code = sum(line.startswith((">>>", "...")) for line in lines)
        if len(text) >= SHORTEST and code <= MOST_CODE * len(lines):
            yield text
