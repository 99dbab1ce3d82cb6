"""Assembles every Triton kernel for every GPU, type and head width, and writes what each takes; needs no GPU.

    python tools/kernel_resources.py [--every] [--only TEXT] [--out FILE]

A line is (registers of a thread, bytes of its stack, where spilled registers go, bytes of shared memory of a program).
The lines are those of a table in tools/results/kernels, one file for each version of Triton, which
tests/fakecuda/test_assembly.py compares; --out renews it. With --every they are all that a model can ask for, which
takes an hour on two cores. --only assembles the lines whose name holds TEXT. Exit code 1: a kernel is too large for a
GPU, or spills where it may not.
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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gpt1_ds.model.kernels import attention_triton, gelu_triton, residual_norm_triton
from gpt1_ds.model.kernels import attention_triton as attention
from gpt1_ds.model.kernels import cross_entropy_triton as cross_entropy

CAPABILITIES = (80, 90, 100)
REGISTERS = 255  # of a thread at most
SHARED_BYTES = 101_376  # of a program at most: what 8.6, 8.9 and 12.0 have, the least of all from 8.0 on
SPILLED = {  # bytes of a stack at most; tiles are chosen for the Triton of CI, which spills nothing
    "3.6.0": {"bf16": 32, "fp16": 32, "fp32": 8},
    "3.9.0": {"bf16": 128, "fp16": 128, "fp32": 2560},
}
TRAINED = (
    "causal dropout, bf16, width 64, sm_90",
    "causal dropout, bf16, width 64, sm_100",
)  # GPT-1: no Triton may spill
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WIDTHS = (32, 64, 128)
ATTENTION = {
    "forward": attention.forward_kernel,
    "query": attention_triton.query_kernel,
    "key": attention_triton.key_kernel,
    "bias": attention_triton.bias_kernel,
}
VISIBLE = {
    "causal": {"CAUSAL": True, "ROWS": False, "BOUNDED": False},
    "prefix": {"CAUSAL": True, "ROWS": True, "BOUNDED": False},
    "rows": {"CAUSAL": False, "ROWS": True, "BOUNDED": False},  # encoders, and what a decoder sees of one
    "documents": {"CAUSAL": True, "ROWS": False, "BOUNDED": True},  # that do not see one another
    "prefix documents": {"CAUSAL": True, "ROWS": True, "BOUNDED": True},
}
FEATURES = {
    f"{name}{' bias' if biased else ''}{' dropout' if drop else ''}": visible | {"BIASED": biased, "DROP": drop}
    for (name, visible), biased, drop in product(VISIBLE.items(), (False, True), (False, True))
}
EVERYWHERE = ("causal dropout", "documents dropout", "prefix bias dropout")  # GPT-1 in training, and nearly all at once
CROSSING = "rows", "rows dropout"  # what attention to a memory is compiled for
OF_A_MEMORY = {"query": 1, "key": 2}  # gradients that lie side by side
POINTERS = (
    dict.fromkeys(("LSE", "DELTA", "SUMS", "WEIGHTS", "STATS", "PARTS"), "fp32")
    | dict.fromkeys(("UNTIL", "BOUNDS", "KEY", "SECOND"), "i32")
    | {"LABELS": "i64"}
)
FRACTIONS = ("factor", "scale", "unit", "eps", "on_label", "on_each")
STRIDES = ("q_head", "q_row", "k_head", "k_row", "bias_head", "bias_row", "stride")  # multiples of 16 at these sizes


@dataclass(frozen=True)
class Case:
    """A kernel, the type of its tensors, and what it is compiled for."""

    name: str
    kernel: Any
    kind: str
    constants: dict[str, Any]
    options: dict[str, int]
    capability: int


def cases(every: bool = False) -> list[Case]:
    """Returns the cases of the table, or all."""
    return [
        Case(f"{name}, sm_{capability}", *how, capability)
        for kind in TYPES
        for capability in CAPABILITIES
        for name, *how in (*attention_cases(kind, capability, every), *loss_cases(kind), *block_cases(kind, every))
    ]


def attention_cases(kind: str, capability: int, every: bool) -> Iterator[tuple[Any, ...]]:
    widths = (*WIDTHS, 16, 96) if every else WIDTHS
    for width, (features, flags), (name, kernel) in product(widths, FEATURES.items(), ATTENTION.items()):
        usual = (kind, width, capability) == ("bf16", 64, 90)
        if (name == "bias" and not flags["BIASED"]) or not (every or usual or features in EVERYWHERE):
            continue
        tile = attention.tile_of(TYPES[kind], width, divmod(capability, 10))
        constants = {"M": tile.queries, "N": tile.keys, "H": triton.next_power_of_2(width), "W": width}
        parts = 1 if kind == "fp32" else 3  # gradients that lie side by side
        constants |= flags | {"PRECISION": attention.PRECISION[TYPES[kind]], "PARTS": parts}
        options = {"num_warps": tile.warps, "num_stages": 1 if name == "bias" else tile.stages}
        of = f"{features}, {kind}, width {width}"
        yield f"attention {name}, {of}", kernel, kind, constants, options
        if name in OF_A_MEMORY and features in CROSSING:
            yield f"attention {name} of a memory, {of}", kernel, kind, constants | {"PARTS": OF_A_MEMORY[name]}, options


def loss_cases(kind: str) -> Iterator[tuple[Any, ...]]:
    options = {"num_warps": cross_entropy.WARPS}
    parts = ("sums", True, False), ("gradient", False, True), ("sums and gradient", True, True)
    for smooth, (name, read, write) in product((False, True), parts):
        constants = {"READ": read, "WRITE": write, "SMOOTH": smooth, "BLOCK": cross_entropy.BLOCK}
        of = f"{' smoothed' if smooth else ''}, {kind}"
        yield f"loss {name}{of}", cross_entropy.softmax_kernel, kind, constants, options


def block_cases(kind: str, every: bool) -> Iterator[tuple[Any, ...]]:
    """GPT-1's and GPT-2 XL's widths; GELU's tiles are the same for all."""
    for width, drop in product((768, 1600), (True, False)):
        if not (drop or width == 768 or every):
            continue
        options = {"num_warps": residual_norm_triton.warps_for(width)}
        constants = {"W": width, "N": triton.next_power_of_2(width), "DROP": drop}
        constants |= {} if drop else {"KEY": None, "SECOND": None}
        of = f"{'' if drop else ' without dropout'}, {kind}, width {width}"
        yield f"sum and norm{of}", residual_norm_triton.forward_kernel, kind, constants, options
        for name, more in (("backward", {"SUMMED": True}), ("alone backward", {"SUMMED": False, "GRAD_SUM": None})):
            yield f"sum and norm {name}{of}", residual_norm_triton.backward_kernel, kind, constants | more, options
    for form, tanh in (("tanh", True), ("erf", False)):
        constants = {"TANH": tanh, "M": gelu_triton.ROWS, "N": gelu_triton.FEATURES}
        for name, kernel in (("", gelu_triton.forward_kernel), (" backward", gelu_triton.backward_kernel)):
            yield f"bias and GELU{name}, {form}, {kind}", kernel, kind, constants, {"num_warps": gelu_triton.WARPS}


def assemble(case: Case) -> list[int]:
    """[registers, stack bytes, shared bytes] of the cubin.

    Every compile-time word has to be said: one that is missing would be an argument, and the kernel another.
    """
    words = {word.name for word in case.kernel.params if word.is_constexpr}
    assert words <= set(case.constants), f"{case.name}: no value for {sorted(words - set(case.constants))}"
    signature, fixed, divisible = {}, {}, {}
    for place, name in enumerate(case.kernel.arg_names):
        if name in case.constants:
            signature[name], fixed[(place,)] = "constexpr", case.constants[name]
        elif name.isupper() and name not in ("G", "S", "T"):
            signature[name] = "*" + POINTERS.get(name, case.kind)
        else:
            signature[name] = "fp32" if name in FRACTIONS else "i32"
        if signature[name].startswith("*") or name in STRIDES:
            divisible[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(case.kernel, signature, constexprs=fixed, attrs=divisible)
    compiled = triton.compile(source, target=GPUTarget("cuda", case.capability, 32), options=case.options)
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


def line_of(name: str) -> list[int]:
    """By name, because a kernel cannot be sent to another process."""
    return assemble(next(case for case in cases(every=True) if case.name == name))


def fits(name: str, line: list[int], version: str = triton.__version__) -> bool:
    """Whether a line of this Triton's table fits every GPU, and spills no register where it may not."""
    registers, stack, shared = line
    kind = next(kind for kind in TYPES if f", {kind}," in name)
    spilled = 0 if name.endswith(TRAINED) else SPILLED.get(version, {}).get(kind, 0)
    return registers <= REGISTERS and stack <= spilled and shared <= SHARED_BYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", action="store_true", help="assemble all that a model can ask for")
    parser.add_argument("--only", default="", help="assemble the lines whose name holds this text")
    parser.add_argument("--out", type=Path, help="write the table as JSON")
    options = parser.parse_args()
    assert "TRITON_INTERPRET" not in os.environ, "interpreted kernels are not assembled: unset TRITON_INTERPRET"
    wanted = [case.name for case in cases(options.every) if options.only in case.name]
    lines = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, line in zip(wanted, pool.map(line_of, wanted), strict=True):
            lines[name] = line
            print(f"{name:70} {line}{'' if fits(name, line) else '  DOES NOT FIT'}", flush=True)
    if options.out:
        columns = ["registers", "stack bytes", "shared bytes"]
        head = {"triton": triton.__version__, "columns": columns}
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(line)}" for name, line in lines.items())
        options.out.write_text(json.dumps(head)[:-1] + ', "lines": {\n' + rows + "\n}}\n")
    sys.exit(not all(fits(name, line) for name, line in lines.items()))


if __name__ == "__main__":
    main()
