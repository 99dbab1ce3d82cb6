"""A contact with a GPU that has just begun, as its results say."""

from __future__ import annotations

from pathlib import Path

from tools.gpu.record import FORMAT, Contact


def begun(folder: Path, host: str = "here", tiny: bool = False, budget: float = 265.0) -> Contact:
    """Returns a contact of the device cuda in `folder`, with its first line written."""
    contact = Contact(folder, folder, "cuda")
    contact.write("start", format=FORMAT, host=host, date="2026-12-01", device="cuda", tiny=tiny, budget=budget)
    return contact
