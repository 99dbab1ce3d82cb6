"""What a pipeline's receive buffers depend on."""

import torch

from gpt1_ds.engine.base import MicroBatch


def test_shapes_are_those_of_every_input() -> None:
    """A second stream of another length must not meet buffers of the first's."""
    facts, labels = torch.zeros(2, 3), (torch.zeros(4),)
    one, other = (MicroBatch((torch.zeros(8, 2), torch.zeros(second, 2), facts), labels).shapes for second in (5, 6))
    assert one != other
    assert one == MicroBatch((torch.ones(8, 2), torch.ones(5, 2), facts), (torch.zeros(9),)).shapes
