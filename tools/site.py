"""The site of README, guides, other pages and the API, by MkDocs, for any web server or none.

    python tools/site.py [--out site]

Pages keep their place: OUT/gpt1_ds/guides/concepts.html is made of gpt1_ds/guides/concepts.md, OUT/index.html of the
README, OUT/api/data.html of the docstrings of gpt1_ds/data/. Files that pages link to are copied.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.commands.guide import FOLDER, NAMES

ROOT = Path(__file__).parents[1]
OTHERS = {
    "All keys and presets": "configs/README.md",
    "Faithfulness": "configs/FAITHFUL.md",
    "Batch scripts": "launch/README.md",
    "A published encoder": "tools/results/published/README.md",
    "Claims of the paper on small models": "tools/results/claims/README.md",
    "Claims: details": "tools/results/claims/DETAILS.md",
    "A GPT-1 of 10 million parameters": "tools/results/books_10m/README.md",
    "Two remedies for two texts": "tools/results/books_10m/two_texts/README.md",
    "10 million parameters: details": "tools/results/books_10m/DETAILS.md",
    "A grid of architectures": "tools/results/grid/README.md",
    "The grid: details": "tools/results/grid/DETAILS.md",
    "BERT's ablations, small": "tools/results/bert_ablation/README.md",
    "BERT's ablations: details": "tools/results/bert_ablation/DETAILS.md",
    "RoBERTa's inputs, small": "tools/results/roberta_inputs/README.md",
    "RoBERTa's inputs: details": "tools/results/roberta_inputs/DETAILS.md",
    "Seven families": "tools/results/families_books/README.md",
    "Seven families: details": "tools/results/families_books/DETAILS.md",
    "Vectors of sentences": "tools/results/sentences_books/README.md",
    "Vectors of sentences: details": "tools/results/sentences_books/DETAILS.md",
    "Tags beside transformers": "tools/results/tasks_beside/README.md",
    "A ladder of books": "tools/results/books_ladder/README.md",
    "A ladder of books: details": "tools/results/books_ladder/DETAILS.md",
    "A recipe for small models": "tools/results/recipe/README.md",
    "A recipe: details": "tools/results/recipe/DETAILS.md",
    "Jobs that are interrupted": "tools/results/jobs/README.md",
    "Jobs that are interrupted: details": "tools/results/jobs/DETAILS.md",
    "Changes": "CHANGELOG.md",
    "Contributing": "CONTRIBUTING.md",
    "Security": "SECURITY.md",
}
PAGES = [ROOT / "README.md", *(FOLDER / f"{name}.md" for name in NAMES), *(ROOT / path for path in OTHERS.values())]
TOP = ROOT  # what pages are named from
LINK = re.compile(r"\]\(((?!http)[^)#]+)")  # to a file, in Markdown


def build(out: Path, packages: list[str] | None = None) -> list[Path]:
    """Write the site into `out`, with the API of `packages` (default: of all); the pages. Raises MkDocs' Abort for a
    link that leads nowhere.
    """
    from mkdocs.commands.build import build as write
    from mkdocs.config import load_config

    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder)
        for page in PAGES:
            for path in {page, *_linked(page)}:
                (sources / path.relative_to(TOP)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, sources / path.relative_to(TOP))
        api = [_api(sources, package) for package in packages or _packages()]
        config = load_config(
            str(ROOT / "tools" / "mkdocs.yml"), docs_dir=folder, site_dir=str(out.resolve()), nav=_nav(api)
        )
        config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(ROOT)]
        write(config)
    return sorted(out.rglob("*.html"))


def _linked(page: Path) -> list[Path]:
    """Files that a page links to, but no pages."""
    found = [(page.parent / name).resolve() for name in LINK.findall(page.read_text())]
    return [path for path in found if path.is_file() and path not in PAGES]


def _packages() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "gpt1_ds").glob("*/__init__.py"))


def _api(sources: Path, package: str) -> dict[str, Any]:
    """Write the page of a package: its modules with their docstrings, as they are read, not imported."""
    modules = sorted(path for path in (ROOT / "gpt1_ds" / package).rglob("*.py") if path.name != "__init__.py")
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in modules]
    page = sources / "api" / f"{package}.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(f"# gpt1_ds.{package}\n\n" + "".join(f"::: {name}\n\n" for name in names))
    return {package: f"api/{package}.md"}


def _nav(api: list[dict[str, Any]]) -> list[dict[str, Any]]:
    guides = [{name: f"gpt1_ds/guides/{name}.md"} for name in NAMES]
    others = [{title: path} for title, path in OTHERS.items()]
    return [{"gpt1-ds": "README.md"}, {"Guides": guides}, {"Reference": others}, {"API": api}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("site"), help="folder of the site (default: %(default)s)")
    out = parser.parse_args().out
    print(f"{len(build(out))} pages: {out / 'index.html'}")


if __name__ == "__main__":
    main()
