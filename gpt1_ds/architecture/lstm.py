"""The paper's LSTM (section 5): one recurrent layer in the place of all blocks, and a linear layer after it."""

from __future__ import annotations

from collections.abc import Iterator

from gpt1_ds.architecture.layer import ZEROS, Initial, Layer, Matrices, Parameter
from gpt1_ds.config import ModelConfig


def body(model: ModelConfig, _lengths: tuple[int, ...]) -> Iterator[Layer]:
    """Everything between the tokens and the head. Matrices of the cell start as torch.nn.LSTM's; the forget gates'
    bias is 1 (Gers et al. 2000, Jozefowicz et al. 2015).
    """
    width, units = model.width, model.units
    cell, gates = Initial("uniform", units**0.5), Matrices(4, units)
    yield Layer(
        "lstm",
        "lstm",
        (
            Parameter("lstm.cell.weight_ih_l0", (4 * units, width), initial=cell, matrices=gates),
            Parameter("lstm.cell.weight_hh_l0", (4 * units, units), initial=cell, matrices=gates),
            Parameter("lstm.cell.bias_ih_l0", (4 * units,), initial=Initial("forget_gates", 1.0)),
            Parameter("lstm.cell.bias_hh_l0", (4 * units,), initial=ZEROS),
            Parameter("lstm.out.weight", (width, units), matrices=Matrices()),
            Parameter("lstm.out.bias", (width,), initial=ZEROS),
        ),
        depth=0,
        products=2.0 * (4 * units * (width + units) + units * width),
    )
