"""The pages that people read, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "gpt1_ds" / "guides").glob("*.md"))
PAGES = [
    *(ROOT / "README.md", *GUIDES, ROOT / "launch" / "README.md", ROOT / "configs" / "README.md"),
    *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")),
    *(
        ROOT / "configs" / "FAITHFUL.md",
        *(
            ROOT / f"tools/results/{name}/README.md"
            for name in (
                *("bert_ablation", "books_10m", "books_ladder", "claims", "grid", "recipe", "roberta_inputs"),
                *("jobs", "tasks_beside"),
            )
        ),
    ),
]
SCRIPTS = sorted((ROOT / "launch").glob("*.sbatch"))
GPUS = 8  # of the nodes that the pages are written for
PLACEHOLDER = re.compile(r"\.\.\.|\b[A-Z]{3,}\b")


@dataclass(frozen=True)
class Line:
    """One command of a page as gpt1-ds gets it. `world` ranks start it where the line or the script says how many."""

    page: str
    text: str
    arguments: tuple[str, ...]
    world: int | None = None

    @property
    def is_name(self) -> bool:
        """Only the name of a command, like `slurm submit`."""
        return len(self.arguments) <= 2 and all(word.isalpha() for word in self.arguments)

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def lines() -> list[Line]:
    """Every command of the program: in blocks of shell, between backticks, and at the top of the launch scripts."""
    found = [line for page in PAGES for text in _texts(page) for line in _commands(page, text)]
    for script in SCRIPTS:
        comments = re.findall(r"^#   ((?:sbatch|bash|gpt1-ds) .*?)(?:    .*)?$", script.read_text(), flags=re.MULTILINE)
        found += [line for text in comments for line in _commands(script, text)]
    return found


def blocks(page: Path) -> list[str]:
    """The lines of the page's blocks of shell."""
    inside = re.findall(r"```(?:bash|sh|console)\n(.*?)```", page.read_text(), flags=re.DOTALL)
    return [line.strip() for line in "\n".join(inside).replace("\\\n", " ").splitlines() if line.strip()]


def _texts(page: Path) -> list[str]:
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    between = re.findall(r"`(gpt1-ds [^`]+)`", prose)
    return [*blocks(page), *(text for text in between if not PLACEHOLDER.search(text))]


def _commands(page: Path, text: str) -> Iterator[Line]:
    for part in text.split(" | "):
        words = shlex.split(part, comments=True)
        name = str(page.relative_to(ROOT))
        if words[0] == "gpt1-ds" and "..." not in part:
            yield Line(name, part, tuple(words[1:]))
        script = re.search(r"launch/(pretrain|finetune|evaluate)\.sbatch", part)
        if script and words[0] in ("sbatch", "bash") and "..." not in part:
            place = words.index(script[0])
            given = dict(re.findall(r"--(nodes|gpus-per-node)=(\d+)", part))
            world = int(given.get("nodes", 1)) * int(given.get("gpus-per-node", 1))
            yield Line(name, part, (script[1], *words[place + 1 :]), world)
        if words[:2] == ["bash", "launch/local.sh"]:
            yield Line(name, part, tuple(words[2:]), GPUS)
