"""Count what a step of GPT-1 asks of an H100, without one, and say what that would take.

    .venv-fakecuda/bin/python tools/gpu_budget.py                    the table of this checkout, one rank and eight
    .venv-fakecuda/bin/python tools/gpu_budget.py --write            also into tools/fakecuda/budget.json
    .venv-fakecuda/bin/python tools/gpu_budget.py --kernels 20 model.attention=fused

tests/fakecuda/test_budget.py compares every checkout with that file: whoever changes a number writes it again. Blocks
are not compiled: the compiler wants a driver. Times are by roofline, not measured; tools/fakecuda/roofline.py names
the constants.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.architecture.count import flops_per_token
from tools.fakecuda import ranks, roofline, steps
from tools.fakecuda.schedule import wire_bytes
from tools.fakecuda.steps import Step

FILE = Path(__file__).parent / "fakecuda" / "budget.json"
PRESET = "pretrain/gpt1_117m"
WORLDS = (1, 8)
PASSES = ("forward", "backward", "loss")  # how the phases of a micro-batch begin


def count(words: list[str], world: int) -> Step:
    """One step of rank 0."""
    return ranks.run(steps.warm_step, words, world, [PRESET], world=world)


def budget(step: Step) -> dict[str, int | float]:
    """What is compared: exactly, but for bytes (1 %)."""
    train, counts = step.config.train, step.counts
    tokens = step.tokens
    return {
        "micro_batch": int(train.micro_batch),
        "micro_batches": step.micro_batches,
        "kernels_per_step": counts.launches,
        "kernels_per_block": kernels_per_block(step),
        "launches_outside_graphs": counts.host_launches,
        "host_syncs": len(counts.syncs),
        "copies_to_device": len(counts.copies),
        "collectives": len(counts.collectives),
        "bytes_per_token": round(counts.bytes / tokens),
        "flops_per_token": round(counts.flops / tokens),
        "sent_bytes": round(sum(map(wire_bytes, counts.collectives))),
    }


def kernels_per_block(step: Step) -> float:
    """Forward and backward of one block and micro-batch; both ends of the model are counted on a model of one block."""
    one = ranks.run(steps.warm_step, ["model.layers=1", *step.words], step.world, [PRESET], world=step.world)
    more, micro_batches = step.config.model.layers - 1, step.micro_batches
    return (_in_passes(step) - _in_passes(one)) / more / micro_batches


def _in_passes(step: Step) -> int:
    return sum(kernel.launches for kernel in step.counts.kernels if kernel.phase.startswith(PASSES))


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
    parser.add_argument("words", nargs="*", metavar="key=value")
    options = parser.parse_args()
    ranks.load()
    found: dict[str, Any] = {}
    for world in options.world:
        step = count(options.words, world)
        found[str(world)] = budget(step)
        print(f"\nrank 0 of {world}: {json.dumps(found[str(world)])}\n{table(step)}")
        for event, number in step.waits():
            print(f"{number:4} x {event}")
        for name, work in roofline.most_expensive(step.counts.kernels, options.kernels):
            print(f"{1e6 * work.seconds / step.tokens:9.3f} us/token {work.launches:6} x {name}")
    if options.write:
        FILE.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
