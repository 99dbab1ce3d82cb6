"""Asks a GPU everything in one command, most valuable first, within a budget of seconds: tools/gpu/contact.sh.

    bash tools/gpu/contact.sh [BUDGET_S] [PHASE...] [--device cuda|cpu] [--tiny] [--list]

Every phase is a forked child with a limit of its own (tools/gpu/runner.py). Results are written line by line into
$OUT/results.jsonl (default: ./gpu-contact); the table of them is printed last. The exit code is 0 whatever the phases
found, and 2 where nothing could be asked.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.gpu import kit
from tools.gpu.phases import PHASES
from tools.gpu.record import FORMAT, LOG, RESULTS, Contact
from tools.gpu.runner import NO_TIME, TIMED_OUT, run

BUDGET = 600.0  # seconds
IMPORTS = 60.0  # seconds, beside the phases
GRACE = 10  # seconds after the budget in which the contact must have ended by itself
LATE = (  # what phases import, and a fork then has
    *("torch._dynamo", "torch._inductor.compile_fx", "gpt1_ds.engine.plain", "gpt1_ds.training.pretraining"),
    *("gpt1_ds.diagnostics.self_proof", "tools.bench.ours", "tools.bench.peers"),
    *("transformers.models.openai.modeling_openai", "transformers.models.gpt2.modeling_gpt2"),
)


def main() -> int:
    began = time.time()
    options = _arguments()
    if options.list:
        for phase in PHASES:
            print(f"{phase.name:24}{phase.limit:4.0f} s{'  needs a GPU' if phase.needs_cuda else ''}")
        return 0
    try:
        contact = Contact(kit.output_folder("gpu-contact"), kit.work_folder(), options.device, options.tiny, began)
        for name in (RESULTS, LOG):
            (contact.out / name).write_text("")
        kit.prepare(contact.work, options.device)
        stopped = ask(contact, options.budget, options.phases)
    except kit.KitError as error:
        print(f"contact.sh: {error}", file=sys.stderr)
        return 2
    from tools.gpu.table import render

    print(f"\n{render(contact.out / RESULTS)}\n{contact.out}")
    if names := unanswered(contact):
        seconds = min(options.budget, sum(phase.limit for phase in PHASES if phase.name in names) + IMPORTS)
        rehearsed = " --device cpu" * (options.device == "cpu") + " --tiny" * options.tiny
        print(f"bash tools/gpu/contact.sh {seconds:.0f} {' '.join(names)}{rehearsed}")
    return 2 if stopped else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="contact.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("budget", nargs="?", type=float, default=BUDGET, metavar="BUDGET_S")
    parser.add_argument("phases", nargs="*", metavar="PHASE", help="only these, in their usual order (default: all)")
    kit.add_options(parser)
    parser.add_argument("--list", action="store_true", help="name the phases and their limits")
    options = parser.parse_intermixed_args()
    if not 0 < options.budget < 1e6:
        parser.error(f"BUDGET_S={options.budget:g}: give seconds, such as 265")
    return options


def ask(contact: Contact, budget: float, wanted: list[str]) -> str | None:
    """Runs the `wanted` phases, or all. Returns the phase without which nothing could be asked, if there is one. Raises
    KitError for a name that is none.
    """
    names = [phase.name for phase in PHASES]
    if unknown := [name for name in wanted if name not in names]:
        raise kit.KitError(f"{', '.join(unknown)}: no such phase; choose among {', '.join(names)}")
    left = max(GRACE, contact.began + budget + GRACE - time.time())  # installing took some
    signal.setitimer(signal.ITIMER_REAL, left)  # SIGALRM ends what hangs
    now = datetime.now(UTC)
    facts = {"format": FORMAT, "host": socket.gethostname(), "date": f"{now:%Y-%m-%d}", "device": contact.device}
    facts |= {"tiny": contact.tiny, "budget": budget, "utc": f"{now:%H:%M:%S}", "argv": sys.argv[1:]}
    contact.write("start", **facts, code=_code(), variables=_variables())
    _load_libraries(contact)
    stopped = run([phase for phase in PHASES if not wanted or phase.name in wanted], contact, budget)
    contact.write("end", outcome="done", phase_seconds=round(time.time() - contact.began, 1))
    signal.setitimer(signal.ITIMER_REAL, 0)
    return stopped


def unanswered(contact: Contact) -> list[str]:
    """Returns the phases that a later contact may answer: those without time, and those that took too long."""
    lines = [json.loads(line) for line in (contact.out / RESULTS).read_text().splitlines()]
    left = {line["phase"] for line in lines if line["kind"] == "skipped" and line["reason"].endswith(NO_TIME)}
    left |= {line["phase"] for line in lines if line["kind"] == "end" and line["outcome"].startswith(TIMED_OUT)}
    return [phase.name for phase in PHASES if phase.name in left]


def _variables() -> dict[str, str]:
    """Returns what decides how fast or how exactly torch computes here."""
    named, prefixes = ("NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS"), ("PYTORCH_", "TORCH_", "CUDA_")
    return {name: value for name, value in os.environ.items() if name in named or name.startswith(prefixes)}


def _code() -> str | None:
    """Returns the hash of the package and the reference; None where what it needs cannot be imported."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch reads it when it is imported
    try:
        from tools.gpu.reference import code

        return code()
    except Exception:
        return None  # `_load_libraries` says why


def _load_libraries(contact: Contact) -> None:
    """Imports what every phase needs, without touching the GPU. What cannot be imported is a line of the results."""
    began = time.time()
    try:
        from gpt1_ds.config import load
        from gpt1_ds.launcher import accelerator, libraries

        accelerator.prepare(load(["pretrain/gpt1_117m"], [f"train.device={contact.device}"]))
        libraries.counted_devices().__enter__()  # and never left: phases inherit it until they use CUDA themselves
        libraries.load()
    except Exception as error:
        contact.failed(error)
    for name in LATE:
        try:
            importlib.import_module(name)
        except Exception as error:
            contact.failed(error, module=name)
    gc.collect()
    gc.freeze()
    contact.fact("imports, s", round(time.time() - began, 1))
    if (torch := sys.modules.get("torch")) is not None:
        contact.fact("the parent has touched the GPU", torch.cuda.is_initialized())


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # libraries have threads and pools that nobody waits for
