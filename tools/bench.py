"""The performance table of this machine: every row side by side with its peers, in turns, in one run.

    python tools/bench.py [--row N ...] [--device cpu|cuda] [--quick] [--rounds 5] [--threads 2] [--out FILE.json]
                          [--text PATH ...] [--bpe DIR]

Prints a table and writes FILE.json, .md, .csv and .png; rows that FILE.json has already are replaced. Every row runs
in a process of its own. A row whose peer's library is missing fails and says which. Only ratios count on a
CPU that others use, too. With --device cuda what others found on GPUs is printed first, wherever it runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.bench import gpu_checks, gpu_contacts, table
from tools.bench.machine import describe
from tools.bench.rows import Options, Ratio, Row

ROWS = {  # number: module of tools/bench, devices
    1: ("gpu_training", ("cuda",)),
    2: ("tax", ("cpu", "cuda")),
    3: ("micro_step", ("cuda",)),
    4: ("dropout_tax", ("cuda",)),
    5: ("head", ("cpu", "cuda")),
    6: ("attention", ("cuda",)),
    7: ("update", ("cpu", "cuda")),
    11: ("pipeline", ("cpu",)),
    12: ("collective", ("cpu",)),
    13: ("training", ("cpu",)),
    15: ("tokenization", ("cpu",)),
    16: ("startup", ("cpu",)),
    17: ("books", ("cpu",)),
    18: ("growth", ("cpu",)),
    19: ("library_kinds", ("cpu",)),
    20: ("generation", ("cpu",)),
}
RESULTS = Path(__file__).with_name("bench") / "results"


def main() -> int:
    options, wanted, out = _arguments()
    _, rows = table.load(out)
    machine = {**describe(options.device), "quick": options.quick}
    failed = []
    for number in wanted:
        print(f"row {number}", file=sys.stderr, flush=True)
        row = _measure_apart(number, options, out)
        if row is None:
            failed.append(number)
            continue
        rows = [other for other in rows if other.number != number] + [row]
        table.save(out, machine, rows)
    print(table.markdown(machine, sorted(rows, key=lambda row: row.number)) if rows else "nothing was measured")
    if failed:
        print(f"rows {failed} failed", file=sys.stderr)
    return bool(failed)


def _arguments() -> tuple[Options, list[int], Path]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", type=int, nargs="+", choices=sorted(ROWS), metavar="N")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: that it works, not how fast")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--text", nargs="+", default=(), metavar="PATH", help="the text of rows 15 and 19 (default: python-docs)"
    )
    parser.add_argument("--bpe", metavar="DIR", help="the 2018 release's vocabulary and merges, for row 15")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # a row's own process
    given = parser.parse_args()
    if given.device == "cuda" and given.into is None:
        print(gpu_checks.table(RESULTS), gpu_contacts.tables(RESULTS), sep="\n", flush=True)
    if wrong := _mistake(given):
        parser.error(wrong)
    rounds = min(given.rounds, 2) if given.quick else given.rounds
    options = Options(given.device, given.threads, rounds, given.quick, tuple(given.text), given.bpe)
    wanted = given.row or [number for number, (_, devices) in ROWS.items() if given.device in devices]
    if given.into is not None:
        _measure(wanted[0], options, given.into)
        sys.exit(0)
    default = Path(tempfile.gettempdir()) / "bench-quick.json" if given.quick else RESULTS / f"{given.device}.json"
    return options, wanted, given.out or default


def _mistake(given: argparse.Namespace) -> str | None:
    """Why nothing can be measured so."""
    for name in ("rounds", "threads"):
        if getattr(given, name) < 1:
            return f"--{name} {getattr(given, name)}: use at least 1"
    for number in given.row or ():
        if given.device not in ROWS[number][1]:
            return f"--row {number} is measured with --device {' or '.join(ROWS[number][1])}"
    for place in (*given.text, given.bpe):
        if place and place != "python-docs" and not Path(place).exists():
            return f"{place}: no such file or folder"
    if given.out and not os.access(given.out.absolute().parent, os.W_OK):
        return f"--out {given.out}: its folder is not there or cannot be written"
    if given.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            return "--device cuda: torch sees no GPU here"
    return None


def _measure(number: int, options: Options, into: Path) -> None:
    module = importlib.import_module(f"tools.bench.{ROWS[number][0]}")
    if not getattr(module, "APART", False):  # else only the processes that it starts need the libraries
        from gpt1_ds.launcher import libraries

        libraries.load()
        import torch

        from gpt1_ds.model import proof

        torch.set_num_threads(options.threads)
        proof.decide(True)  # it is the speed of the kernels that is measured
    row: Row = module.measure(options)
    into.write_text(json.dumps(asdict(row)))
    if hasattr(module, "draw"):  # a plot of its own
        module.draw(into.with_suffix(".png"), row)


def _measure_apart(number: int, options: Options, out: Path) -> Row | None:
    """In a process of its own; its plot, if it draws one, lies beside `out`."""
    arguments = [sys.executable, __file__, "--row", str(number), "--device", options.device]
    arguments += ["--rounds", str(options.rounds), "--threads", str(options.threads)] + ["--quick"] * options.quick
    arguments += ["--text", *options.text] * bool(options.text) + ["--bpe", str(options.bpe)] * bool(options.bpe)
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    if options.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""  # DeepSpeed would take a GPU that it sees
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "row.json"
        ended = subprocess.run([*arguments, "--into", str(into)], env=environment, stdout=sys.stderr)
        if ended.returncode:
            return None
        found = json.loads(into.read_text())
        if into.with_suffix(".png").exists():
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(into.with_suffix(".png"), out.with_name(f"{ROWS[number][0]}.png"))
    return Row(**{**found, "ratios": [Ratio(**one) for one in found["ratios"]]})


if __name__ == "__main__":
    sys.exit(main())
