"""Assembles every Triton kernel for every GPU, type and head width, and writes what each takes; needs no GPU.

    python tools/kernel_resources.py [--only TEXT] [--out FILE]

A line is (registers of a thread, bytes of its stack, where spilled registers go, bytes of shared memory of a program).
--only assembles the lines whose name holds TEXT; without it, --out tools/results/kernels.json renews the table that
tests/fakecuda/test_assembly.py compares.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gpt1_ds.model.kernels import attention, attention_backward, cross_entropy

CAPABILITIES = (80, 90, 100)
SHARED_BYTES = 101_376  # of a program at most: what 8.6, 8.9 and 12.0 have, the least of all from 8.0 on
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WIDTHS = (32, 64, 128)
ATTENTION = {
    "forward": attention.forward_kernel,
    "query": attention_backward.query_kernel,
    "key": attention_backward.key_kernel,
    "bias": attention_backward.bias_kernel,
}
# GPT-1 in training, and all that a kernel can be asked for
FEATURES = {"causal dropout": {"ROWS": False, "BIASED": False}, "all features": {"ROWS": True, "BIASED": True}}
POINTERS = {"LSE": "fp32", "DELTA": "fp32", "SUMS": "fp32", "WEIGHTS": "fp32", "LABELS": "i64"} | dict.fromkeys(
    ("UNTIL", "KEY", "SECOND"), "i32"
)
FRACTIONS = ("factor", "scale", "unit")
STRIDES = ("q_head", "q_row", "k_head", "k_row", "bias_head", "bias_row", "stride")  # multiples of 16 at these sizes


def cases() -> Iterator[tuple[str, Any, str, dict[str, Any], dict[str, int]]]:
    """(name, kernel, type, constants, options) of every line."""
    for kind, dtype in TYPES.items():
        for width in WIDTHS:
            for (name, kernel), (features, flags) in ((k, f) for k in ATTENTION.items() for f in FEATURES.items()):
                if name == "bias" and not flags["BIASED"]:
                    continue
                tile = attention.tile_of(name, torch.empty(1, 1, width, dtype=dtype))
                constants = {"M": tile.queries, "N": tile.keys, "H": width, "W": width, "CAUSAL": True, "DROP": True}
                constants |= flags | {"PRECISION": attention.PRECISION[dtype]}
                options = {"num_warps": tile.warps, "num_stages": tile.stages}
                yield f"attention {name}, {features}, {kind}, width {width}", kernel, kind, constants, options
        for name, read, write in (("sums", 1, 0), ("gradient", 0, 1), ("sums and gradient", 1, 1)):
            constants = {"READ": bool(read), "WRITE": bool(write), "BLOCK": cross_entropy.BLOCK}
            yield (
                f"loss {name}, {kind}",
                cross_entropy.softmax_kernel,
                kind,
                constants,
                {"num_warps": cross_entropy.WARPS},
            )


def assemble(kernel: Any, kind: str, constants: dict[str, Any], options: dict[str, int], capability: int) -> list[int]:
    """[registers, stack bytes, shared bytes] of the cubin."""
    signature, fixed, divisible = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], fixed[(place,)] = "constexpr", constants[name]
        elif name.isupper() and name != "G" and name not in ("S", "T"):
            signature[name] = "*" + POINTERS.get(name, kind)
        else:
            signature[name] = "fp32" if name in FRACTIONS else "i32"
        if signature[name].startswith("*") or name in STRIDES:
            divisible[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs=fixed, attrs=divisible)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        command = [str(tool), "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", said)
    assert found, said
    registers, stack, local = map(int, found.groups())
    return [registers, stack + local, int(compiled.metadata.shared)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="assemble the lines whose name holds this text")
    parser.add_argument("--out", type=Path, help="write the table as JSON")
    options = parser.parse_args()
    assert "TRITON_INTERPRET" not in os.environ, "interpreted kernels are not assembled: unset TRITON_INTERPRET"
    lines = {}
    for case, *how in cases():
        for capability in CAPABILITIES:
            name = f"{case}, sm_{capability}"
            if options.only in name:
                lines[name] = assemble(*how, capability)
                print(f"{name:70} {lines[name]}", flush=True)
    if options.out:
        columns = ["registers", "stack bytes", "shared bytes"]
        head = {"triton": triton.__version__, "columns": columns, "shared bytes at most": SHARED_BYTES}
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(line)}" for name, line in lines.items())
        options.out.write_text(json.dumps(head)[:-1] + ', "lines": {\n' + rows + "\n}}\n")


if __name__ == "__main__":
    main()
