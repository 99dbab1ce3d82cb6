"""Row 0: what the machine's matrix products reach, of the shapes that full-size GPT-1 multiplies and of a square one.

Every training step consists of these products and of what surrounds them; rows 5 and 13 are measured against them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tools.bench.rows import Options, Row, take_turns

WIDTH, FFN, VOCABULARY, LAYERS, HEADS = 768, 3072, 40576, 12, 12  # padded vocabulary


@dataclass(frozen=True)
class Product:
    """[M, K] x [K, N], `count` times a step (`batch` of them at once)."""

    name: str
    m: int
    k: int
    n: int
    count: int = 1
    batch: int = 1

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.k * self.n * self.count


def linear(name: str, tokens: int, inputs: int, outputs: int, count: int) -> Iterator[Product]:
    """Forward, gradient of the input, gradient of the weight."""
    yield Product(f"{name} forward", tokens, inputs, outputs, count)
    yield Product(f"{name} input gradient", tokens, outputs, inputs, count)
    yield Product(f"{name} weight gradient", outputs, tokens, inputs, count)


def of_model(rows: int, context: int, layers: int = LAYERS) -> list[Product]:
    """All products of a training step of GPT-1 on `rows` x `context` tokens, attention's whole squares included."""
    tokens = rows * context
    products = [
        *linear("query, key, value", tokens, WIDTH, 3 * WIDTH, layers),
        *linear("attention output", tokens, WIDTH, WIDTH, layers),
        *linear("mlp up", tokens, WIDTH, FFN, layers),
        *linear("mlp down", tokens, FFN, WIDTH, layers),
        *linear("head", tokens, WIDTH, VOCABULARY, 1),
    ]
    head, groups = WIDTH // HEADS, rows * HEADS
    scores = Product("attention scores", context, head, context, 2 * layers, groups)  # and the weights' gradient
    mixed = Product("attention values", context, context, head, 4 * layers, groups)  # out, and gradients of q, k, v
    return [*products, scores, mixed]


def fastest(product: Product, dtype: Any, device: str) -> Callable[[], float]:
    """Seconds of all `count` of this product, in the fastest of the four layouts of its operands."""
    import torch

    def operand(rows: int, columns: int, transposed: bool) -> Any:
        shape = (product.batch, columns, rows) if transposed else (product.batch, rows, columns)
        made = torch.randn(shape, device=device).to(dtype)
        return made.transpose(1, 2) if transposed else made

    def seconds(left: Any, right: Any, repeats: int) -> float:
        multiply = (lambda: torch.mm(left[0], right[0])) if product.batch == 1 else (lambda: torch.bmm(left, right))
        multiply()
        begin = time.perf_counter()
        for _ in range(repeats):
            multiply()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / repeats

    layouts = [
        (operand(product.m, product.k, a), operand(product.k, product.n, b))
        for a in (False, True)
        for b in (False, True)
    ]
    left, right = min(layouts, key=lambda pair: seconds(*pair, 2))
    return lambda: product.count * seconds(left, right, 3)


def measure(options: Options) -> Row:
    import torch

    rows, context = (1, 128) if options.quick else (4, 512)
    products = [Product("square", *(512,) * 3) if options.quick else Product("square", *(2048,) * 3)]
    products += of_model(rows, context, 1 if options.quick else LAYERS)
    works = {one.name: fastest(one, torch.bfloat16, options.device) for one in products}
    flops = {one.name: one.flops for one in products}

    def rate(name: str) -> Callable[[], float]:
        return lambda: flops[name] / works[name]() / 1e12

    series = take_turns({name: rate(name) for name in works}, options.rounds)
    return Row(
        number=0,
        title="matrix products of GPT-1, bf16, each in its fastest layout",
        unit="TFLOP/s",
        series=series,
        ratios=[],
        configuration={"rows": rows, "context": context, "threads": torch.get_num_threads()},
    )
