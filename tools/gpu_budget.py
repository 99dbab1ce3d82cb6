"""Count what a step of GPT-1 asks of an H100, without one, and say what that would take.

    .venv-fakecuda/bin/python tools/gpu_budget.py                    of one rank and of eight, eager and compiled
    .venv-fakecuda/bin/python tools/gpu_budget.py --write            also into tools/fakecuda/budget.json
    .venv-fakecuda/bin/python tools/gpu_budget.py --mode eager --kernels 20 model.attention=fused

tests/fakecuda/test_budget.py compares every checkout with that file: whoever changes a number writes it again. Times
are by roofline, not measured; tools/fakecuda/roofline.py names the constants.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.architecture.count import flops_per_token
from tools.fakecuda import parts, ranks, roofline, steps
from tools.fakecuda.schedule import wire_bytes
from tools.fakecuda.steps import Step

FILE = Path(__file__).parent / "fakecuda" / "budget.json"
PRESET = "pretrain/gpt1_117m"
WORLDS = (1, 8)
MODES = {"eager": "train.compile=off", "compiled": "train.compile=on"}


def count(overrides: list[str], world: int, mode: str) -> Step:
    """One step of rank 0."""
    return ranks.run(steps.warm_step, [MODES[mode], *overrides], world, [PRESET], world=world)


def budget(step: Step) -> dict[str, Any]:
    """What is compared: exactly, but for bytes and microseconds (1 %)."""
    train, counts = step.config.train, step.counts
    tokens = step.tokens
    sizes = [f"train.micro_batch={train.micro_batch}", f"train.global_batch={train.micro_batch * step.data_ranks}"]
    block, ends = parts.block_and_ends([*step.overrides, *sizes], step.world, [PRESET])
    return {
        "micro_batch": int(train.micro_batch),
        "micro_batches": step.micro_batches,
        "kernels_per_step": counts.launches,
        "kernels_per_block": block.kernels,
        "kernels_of_both_ends": ends.kernels,
        "launches_outside_graphs": counts.host_launches,
        "host_syncs": len(counts.syncs),
        "copies_to_device": len(counts.copies),
        "collectives": len(counts.collectives),
        "bytes_per_token": round(counts.bytes / tokens),
        "flops_per_token": round(counts.flops / tokens),
        "sent_bytes": round(sum(map(wire_bytes, counts.collectives))),
        "microseconds_per_token": microseconds(step),
    }


def microseconds(step: Step) -> dict[str, float]:
    """Returns the device's microseconds by roofline, for each kind of work."""
    works = roofline.by_category(step.counts.kernels)
    found = {name: work.seconds for name, work in works.items()}
    found["sum"] = sum(found.values())
    return {name: round(1e6 * seconds / step.tokens, 3) for name, seconds in found.items()}


def table(step: Step) -> str:
    """Microseconds per token, by what they are spent on."""
    tokens, vocab_size = step.tokens, step.config.model.vocab_size or 0
    lines = [f"{'':36}{'us/token':>9}{'kernels':>9}{'bytes/token':>13}{'MFLOP/token':>13}"]
    total = roofline.Work()
    for name, work in roofline.by_category(step.counts.kernels).items():
        lines.append(_row(name, work, tokens))
        for key in ("launches", "bytes", "flops", "seconds"):
            setattr(total, key, getattr(total, key) + getattr(work, key))
    lines.append(_row("sum", total, tokens))
    host = step.counts.host_launches * roofline.LAUNCH
    for name, seconds in (("device", total.seconds), ("device or launches", max(total.seconds, host))):
        speed = tokens / seconds
        peak = speed * flops_per_token(step.config.model, vocab_size) / roofline.PEAK
        lines.append(f"{name}: {speed:,.0f} tokens/s of one rank, {peak:.1%} of the peak")
    return "\n".join(lines)


def _row(name: str, work: roofline.Work, tokens: int) -> str:
    us = 1e6 * work.seconds / tokens
    return f"{name:36}{us:9.3f}{work.launches:9}{work.bytes / tokens:13,.0f}{work.flops / tokens / 1e6:13.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {FILE.parent.name}/{FILE.name}")
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="also the N longest, with where they are")
    parser.add_argument("--world", type=int, nargs="*", default=WORLDS)
    parser.add_argument("--mode", choices=MODES, nargs="*", default=[*MODES])
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args()
    ranks.load()
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for world, mode in product(options.world, options.mode):
        step = count(options.overrides, world, mode)
        found[str(world)][mode] = budget(step)
        print(f"\nrank 0 of {world}, {mode}: {json.dumps(found[str(world)][mode])}\n{table(step)}")
        for event, number in step.waits():
            print(f"{number:4} x {event}")
        for name, work in roofline.most_expensive(step.counts.kernels, options.kernels):
            print(f"{1e6 * work.seconds / step.tokens:9.3f} us/token {work.launches:6} x {name}")
    if options.write:
        FILE.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
