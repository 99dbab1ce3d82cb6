"""Losses of the first steps of a small GPT-1 with dropout, which a GPU must give as a CPU does (promise 9).

python tools/gpu/reference.py FILE.json     compute them on this CPU and keep them, unless FILE.json has them
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpt1_ds.common.files import parse_json, write_json
from gpt1_ds.config import load

STEPS = 20
RATE = 1e-3
MOST_BYTES = 1 << 20
SIZE = [
    *("model.layers=3", "model.width=128", "model.heads=4", "model.context=128", "model.vocab_size=2000"),
    *("train.global_batch=8", "train.micro_batch=8"),
]
CASES = {  # name: (settings, how far the losses may be from the CPU's, nats)
    "fp32": (["train.precision=fp32"], 1e-5),
    "bf16": (["train.precision=bf16"], 2e-3),
    "bf16, 2 micro-batches": (["train.precision=bf16", "train.micro_batch=4"], 2e-3),
}


def losses(device: str, case: str, arguments: Sequence[str] = (), steps: int = STEPS) -> tuple[list[float], Any]:
    """Returns (the losses of the first `steps` of a case with `arguments` over its settings, the engine)."""
    from tools.bench.ours import Ours, Text

    config = load(["pretrain/gpt1_117m"], [*SIZE, *CASES[case][0], *arguments])
    engine = Ours(config, Text(config), device, RATE)
    return [engine.step() for _ in range(steps)], engine


def code() -> str:
    """Returns a hash of what the losses depend on: the source of the package and of this file."""
    import hashlib

    from gpt1_ds.training.provenance import provenance

    return hashlib.sha256(provenance()["code"].encode() + Path(__file__).read_bytes()).hexdigest()[:16]


def read(path: Path) -> dict[str, list[float]] | None:
    """Returns the losses of each case that this very program kept; None where it has to compute them."""
    try:
        found = parse_json(path.read_bytes()[: MOST_BYTES + 1])
        cases = {case: [float(loss) for loss in found["losses"][case]] for case in CASES}
        return cases if found["code"] == code() and all(len(one) == STEPS for one in cases.values()) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def compute(arguments: Sequence[str] = (), steps: int = STEPS) -> dict[str, list[float]]:
    """Returns the losses of each case on this CPU, for which the libraries are loaded."""
    return {case: losses("cpu", case, arguments, steps)[0] for case in CASES}


def main() -> int:
    (name,) = sys.argv[1:] or ("",)
    if not name or name.startswith("-"):
        print(__doc__)
        return 2
    os.environ.update(CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu")
    path = Path(name)
    if read(path) is None:
        from gpt1_ds.launcher import libraries

        libraries.load()
        write_json(path, {"code": code(), "losses": compute()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
