"""Made-up text to build datasets from."""

from __future__ import annotations

import json
import random
from pathlib import Path

SYLLABLES = ["ka", "lo", "mi", "ren", "sta", "tu", "vel", "wo", "xi", "bra", "den", "fo", "gil", "han", "jor"]


def sentences(count: int, seed: int = 0) -> list[str]:
    """Made-up sentences with capitals, punctuation and a few letters outside ASCII."""
    draw = random.Random(seed)
    lexicon = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 3))) for _ in range(400)] + ["café", "naïve", "5th"]
    out = []
    for _ in range(count):
        words = draw.choices(lexicon, k=draw.randint(3, 14))
        out.append(" ".join(words).capitalize() + draw.choice([".", "!", "?", ', "' + words[0] + '."']))
    return out


def write_corpus(folder: Path, documents: int = 12, lines: int = 40) -> Path:
    """A folder of .txt files with LF, CRLF and BOM, and one .jsonl file."""
    folder.mkdir(parents=True)
    for number in range(documents):
        text = "\n".join(sentences(lines, seed=number)) + "\n"
        if number % 3 == 1:
            text = "\ufeff" + text.replace("\n", "\r\n")
        (folder / f"book-{number:02d}.txt").write_bytes(text.encode())
    rows = [json.dumps({"text": " ".join(sentences(3, seed=100 + number))}) for number in range(30)]
    (folder / "short.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
