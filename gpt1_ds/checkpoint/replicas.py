"""Copies of a parameter that several ranks hold are compared, on the device.

Under tensor parallelism these are norms, biases and positions, in a pipeline the two ends' tied embedding, over
data-parallel ranks every weight that is there whole. Each is hashed where it lies, and one minimum over all ranks tells
whether two hashes of a parameter differ. ZeRO cuts master weights over the data-parallel ranks: their hashes are added
up over those first, so that the cut does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from gpt1_ds.checkpoint.shard import hash_of
from gpt1_ds.engine import master_weights
from gpt1_ds.engine.base import Engine
from gpt1_ds.model import names
from gpt1_ds.model.names import ParameterInfo

WEIGHT, MASTER = "weight", "master weight"
_NONE = torch.iinfo(torch.int64).max  # of a rank that has no copy: it is no minimum

Key = tuple[str, str, int, int]  # (WEIGHT or MASTER, canonical name, range along the tensor-parallel dimension)


@dataclass(frozen=True)
class Difference:
    """A parameter whose copies differ, the ranks that hold it, grouped by equal copies (most ranks first), and how many
    parameters differ altogether.
    """

    kind: str
    name: str
    ranks: list[list[int]]
    parameters: int

    def __str__(self) -> str:
        alike = " and ".join(f"rank{'s' * (len(group) > 1)} {', '.join(map(str, group))}" for group in self.ranks)
        more = f" ({self.parameters} parameters differ)" if self.parameters > 1 else ""
        return f"the {self.kind} {self.name} is not the same on {alike}{more}"


class Replicas:
    """What the ranks of an engine hold in common. Every method is called by all ranks together."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.groups = engine, engine.groups
        held = {_key(WEIGHT, names.info(parameter)) for parameter in master_weights.kept_whole(engine)}
        if engine.deepspeed.zero_optimization_stage():  # else they are the weights
            held |= {_key(MASTER, names.info(parameter)) for parameter in engine.module.parameters()}
        holders: dict[Key, set[tuple[int, ...]]] = {}
        for rank, keys in enumerate(self.groups.gather(sorted(held))):
            tensor, pipeline, data = self.groups.layout.coordinates(rank)
            for key in keys:  # the data ranks hold one copy of the master weights together
                holders.setdefault(key, set()).add((tensor, pipeline, data if key[0] == WEIGHT else 0))
        self._shared = sorted(key for key, places in holders.items() if len(places) > 1)
        self._mine = [key for key in self._shared if key in held]

    @torch.no_grad()
    def compare(self) -> Difference | None:
        """Returns the first parameter whose copies differ, the same answer on every rank; None when all are equal."""
        if not self._shared:
            return None
        hashes = self._hashes()
        lowest = torch.full((2, len(self._shared)), _NONE, device=self.engine.device)
        if hashes:
            values = torch.stack(list(hashes.values()))
            slots = [slot for slot, key in enumerate(self._shared) if key in hashes]
            lowest[:, slots] = torch.stack((values, ~values))  # ~ turns the order around
        dist.all_reduce(lowest, dist.ReduceOp.MIN)
        differing = (lowest[0] != ~lowest[1]).nonzero().view(-1).tolist()
        return self._explain([self._shared[slot] for slot in differing], hashes) if differing else None

    def _hashes(self) -> dict[Key, Tensor]:
        """Returns int64 [] of every shared parameter that this rank holds, in the order of `_shared`."""
        hashes = {key: torch.zeros((), dtype=torch.int64, device=self.engine.device) for key in self._mine}
        for kind, fragments in ((WEIGHT, master_weights.weights), (MASTER, master_weights.fragments)):
            for fragment in fragments(self.engine):
                if (key := _key(kind, fragment.info)) in hashes:
                    hashes[key] += hash_of(fragment)
        cut = [key for key in self._mine if key[0] == MASTER]
        if cut and self.groups.layout.data > 1:
            sums = torch.stack([hashes[key] for key in cut])
            dist.all_reduce(sums, group=self.groups.data_group)
            hashes.update(zip(cut, sums, strict=True))
        return hashes

    def _explain(self, differing: list[Key], hashes: dict[Key, Tensor]) -> Difference:
        kind, name, *_ = first = differing[0]
        alike: dict[int, list[int]] = {}
        for rank, value in enumerate(self.groups.gather(int(hashes[first]) if first in hashes else None)):
            if value is not None:
                alike.setdefault(value, []).append(rank)
        ranks = sorted(alike.values(), key=lambda group: (-len(group), group))
        return Difference(kind, name, ranks, len({name for _, name, *_ in differing}))


def _key(kind: str, info: ParameterInfo) -> Key:
    return kind, info.name, info.start, info.stop
