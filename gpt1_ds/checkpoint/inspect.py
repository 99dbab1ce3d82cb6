"""`checkpoint inspect` and `checkpoint verify`: on any machine, without torch."""

from __future__ import annotations

from pathlib import Path

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find
from gpt1_ds.checkpoint.verify import verify_files
from gpt1_ds.common import progress
from gpt1_ds.common.text import shown
from gpt1_ds.common.units import byte_size, count


def inspect(path: Path) -> int:
    """Print what a checkpoint holds and where it came from."""
    folder = find(path)
    facts = manifest.read(folder)
    size = sum(file["bytes"] for file in facts["files"].values())
    layout = facts["layout"]
    print(f"{folder}")
    print(f"  step {facts['step']}, {count(facts['tokens'])} tokens, {facts['updates']} updates, {facts['precision']}")
    if "imported" in facts:
        print(f"  imported from {shown(str(facts['imported']))}: weights only, for checkpoint.init_from")
    if isinstance(facts.get("task"), dict):
        print(shown(f"  fine-tuned on {facts['task'].get('name')}, {facts['task'].get('kind')}"))
    print(
        f"  written on tensor {layout['tensor']} x pipeline {layout['pipeline']} x data {layout['data']}, "
        f"ZeRO {layout['zero']}, {'pipelined' if layout['pipelined'] else 'dense'}"
    )
    print(f"  {len(facts['parameters'])} parameters, {len(facts['files'])} files, {byte_size(size)}")
    print(f"  seed {facts['seed']}, probe loss {facts['probe']['loss']:.6f}")
    for name, value in facts["hashes"].items():
        print(shown(f"  {name} {value[:16] or 'none'}"))
    return 0


def verify(path: Path) -> int:
    """Compare every file with the manifest; raises CheckpointError naming the first difference."""
    folder = find(path)
    facts = manifest.read(folder)
    done = 0
    with progress.bar(len(facts["files"]), unit="{:.0f} files".format) as show:

        def one_more() -> None:
            nonlocal done
            done += 1
            show(done)

        verify_files(folder, facts, progress=one_more)
    print(f"{folder}: {len(facts['files'])} files as written")
    return 0
