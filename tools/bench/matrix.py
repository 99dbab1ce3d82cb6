"""Row 0: what the machine's matrix products reach, of the shapes that full-size GPT-1 multiplies and of a square one.

Every training step consists of these products and of what surrounds them; rows 5, 13 and 17 are measured against them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpt1_ds.architecture.layer import padded
from gpt1_ds.config import ModelConfig
from tools.bench.ours import gpt1
from tools.bench.rows import Options, Row, seconds, take_turns


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


def of_model(model: ModelConfig, rows: int) -> list[Product]:
    """All products of a training step on `rows` sequences of whole context, attention's squares whole."""
    width, head, layers = model.width, model.head_width, model.layers
    tokens, groups = rows * model.context, rows * model.heads
    assert model.vocab_size is not None, "it is known here"
    return [
        *linear("query, key, value", tokens, width, 3 * width, layers),
        *linear("attention output", tokens, width, width, layers),
        *linear("mlp up", tokens, width, model.ffn_width, layers),
        *linear("mlp down", tokens, model.ffn_width, width, layers),
        *linear("head", tokens, width, padded(model.vocab_size, model.vocab_multiple, 1), 1),
        Product(
            "attention scores", model.context, head, model.context, 2 * layers, groups
        ),  # and the weights' gradient
        Product("attention values", model.context, model.context, head, 4 * layers, groups),  # and those of q, k, v
    ]


def fastest(product: Product, dtype: Any, device: str) -> Callable[[], float]:
    """Seconds of all `count` of this product, in the fastest of the four layouts of its operands."""
    import torch

    def operand(rows: int, columns: int, transposed: bool) -> Any:
        shape = (product.batch, columns, rows) if transposed else (product.batch, rows, columns)
        made = torch.randn(shape, device=device).to(dtype)
        return made.transpose(1, 2) if transposed else made

    def once(left: Any, right: Any, repeats: int) -> float:
        def multiply(times: int) -> None:
            for _ in range(times):
                torch.mm(left[0], right[0]) if product.batch == 1 else torch.bmm(left, right)

        multiply(1)
        return seconds(lambda: multiply(repeats), device) / repeats

    layouts = [
        (operand(product.m, product.k, a), operand(product.k, product.n, b))
        for a in (False, True)
        for b in (False, True)
    ]
    left, right = min(layouts, key=lambda pair: once(*pair, 2))
    return lambda: product.count * once(left, right, 3)


def step_seconds(products: list[Product], device: str) -> Callable[[], float]:
    """Seconds of all the products of a step in bf16, each in its fastest layout."""
    import torch

    works = [fastest(one, torch.bfloat16, device) for one in products]
    return lambda: sum(work() for work in works)


def measure(options: Options) -> Row:
    import torch

    rows = 1 if options.quick else 4
    model = gpt1(options, rows).model
    edge = 512 if options.quick else 2048
    products = [Product("square", edge, edge, edge), *of_model(model, rows)]
    works = {one.name: fastest(one, torch.bfloat16, options.device) for one in products}
    flops = {one.name: one.flops for one in products}

    def speed(name: str) -> Callable[[], float]:
        return lambda: flops[name] / works[name]() / 1e12

    return Row(
        number=0,
        title="matrix products of GPT-1, bf16, each in its fastest layout",
        unit="TFLOP/s",
        series=take_turns({name: speed(name) for name in works}, options.rounds),
        ratios=[],
        configuration={"rows": rows, "context": model.context, "threads": torch.get_num_threads()},
    )
