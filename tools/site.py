"""A static site of README, guides and the other pages, for any web server or none.

    python tools/site.py [--out site]

Pages keep their place: OUT/gpt1_ds/guides/concepts.html is made of gpt1_ds/guides/concepts.md, OUT/index.html of the
README. Figures and files that pages link to are copied.
"""

from __future__ import annotations

import argparse
import html
import re
import shutil
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from markdown_it import MarkdownIt

from gpt1_ds.commands.guide import FOLDER, NAMES

ROOT = Path(__file__).parents[1]
PAGES = {  # of the repository -> of the site
    ROOT / "README.md": "index.html",
    **{FOLDER / f"{name}.md": f"gpt1_ds/guides/{name}.html" for name in NAMES},
    **{ROOT / f"{name}.md": f"{name.lower()}.html" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")},
    ROOT / "configs" / "README.md": "configs/index.html",
    ROOT / "configs" / "FAITHFUL.md": "configs/faithful.html",
    ROOT / "launch" / "README.md": "launch/index.html",
    ROOT / "tools" / "results" / "books_ladder" / "README.md": "tools/results/books_ladder/index.html",
}
LINK = re.compile(r"\]\(((?!http)[^)#]+)")  # to a file, in Markdown
STYLE = """
body { display: flex; gap: 2em; max-width: 76em; margin: 0 auto; padding: 1em; font: 16px/1.5 sans-serif; color: #223 }
nav { flex: 0 0 13em; font-size: 14px } nav a { display: block; padding: .15em 0 }
main { min-width: 0 } img { max-width: 100% } a { color: #2a5d94; text-decoration: none }
code, pre { font: 13px/1.5 monospace; background: #f3f5f8 } pre { padding: .8em; overflow-x: auto }
table { border-collapse: collapse; font-size: 14px; display: block; overflow-x: auto }
td, th { border: 1px solid #d5dbe3; padding: .3em .6em; text-align: left; vertical-align: top }
blockquote { border-left: 3px solid #d5dbe3; margin-left: 0; padding-left: 1em }
"""


def build(out: Path) -> list[Path]:
    """Write all pages below `out`, and the files that they link to; the pages."""
    markdown = MarkdownIt("commonmark").enable("table")
    for source, name in PAGES.items():
        lines = source.read_text().splitlines()
        text = LINK.sub(partial(_link, source, out), "\n".join(lines))
        page = out / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(_page(lines[0].lstrip("# "), markdown.render(text), "../" * name.count("/")))
    return [out / name for name in PAGES.values()]


def _link(source: Path, out: Path, found: re.Match[str]) -> str:
    """The same link on the site; a file that is no page is copied there."""
    target = (source.parent / found[1]).resolve()
    place = PAGES.get(target, target.relative_to(ROOT).as_posix())
    if target not in PAGES and target.is_file():
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target, out / place)
    return f"]({'../' * PAGES[source].count('/')}{place}"


def _page(title: str, body: str, up: str) -> str:
    shown = {"README": "index.html", **{name: f"gpt1_ds/guides/{name}.html" for name in NAMES}}
    shown |= {"all keys and presets": "configs/index.html", "faithfulness": "configs/faithful.html"}
    links = "".join(f'<a href="{up}{path}">{name}</a>' for name, path in shown.items())
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html><html><head>{head}</head><body><nav>{links}</nav><main>{body}</main></body></html>\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("site"), help="folder of the site (default: %(default)s)")
    written = build(parser.parse_args().out)
    print(f"{len(written)} pages: {written[0]}")


if __name__ == "__main__":
    main()
