"""The fp32 master weights and optimizer moments, wherever a DeepSpeed optimizer keeps them.

ZeRO flattens a rank's parameters into one tensor per group and cuts it over the data-parallel ranks. A `Fragment` says
which elements of which parameter a rank holds, as views that can be read and written in place. Initialisation, saving
and loading all go through here, so every layout starts, stops and continues the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import Parameter

from gpt1_ds.architecture.layer import Matrices
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.muon import Muon
from gpt1_ds.engine.ranges import FlatContents, LocalRange, ShardRange, StageSums, WholeParameter
from gpt1_ds.engine.transfer import keep_on_host, kept_bytes
from gpt1_ds.engine.whole_parameters import FACTORS, WholeParameters
from gpt1_ds.model import names
from gpt1_ds.model.names import ParameterInfo

_Place = tuple[Parameter, Tensor, int, int, int]  # the numbers of a _Piece, pad rows among them
SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")  # state of DeepSpeed's dynamic loss scaler


@dataclass(frozen=True)
class Fragment:
    """Elements [offset, offset + len(master)) of this rank's flattened shard of one parameter. All tensors are 1-D fp32
    views. `moments` (one number for each element) and `factors` (one for each row or column of the whole parameter) are
    empty before the first update.
    """

    info: ParameterInfo
    offset: int
    master: Tensor
    moments: dict[str, Tensor] = field(default_factory=dict)
    factors: dict[str, Tensor] = field(default_factory=dict)

    @property
    def saved(self) -> dict[str, Tensor]:
        """Returns what a checkpoint holds of it, by kind. Every fragment has the factors of its whole parameter; they
        are saved with the first one.
        """
        first = self.info.start == self.offset == 0
        return {"master": self.master, **self.moments, **(self.factors if first else {})}


@dataclass(frozen=True)
class _Piece:
    """Where a fragment lies in its flat tensor: `flat[start : start + count]`, from element `offset` of the parameter.
    Pad rows are not counted; `count` is 0 where there is nothing else.
    """

    info: ParameterInfo
    flat: Tensor
    start: int
    offset: int
    count: int


def fragments(engine: Engine) -> list[Fragment]:
    """Returns everything this rank holds, in a fixed order; elements of pad rows are left out."""
    optimizer, found = engine.optimizer, []
    for piece in _pieces(engine):
        info, count = piece.info, piece.count
        if not count:
            continue
        master = piece.flat.detach().view(-1).narrow(0, piece.start, count)
        kept = optimizer.state.get(piece.flat, {})
        keys = optimizer.moments(piece.flat) if kept else ()
        moments = {key: kept[key].view(-1).narrow(0, piece.start, count) for key in keys}
        factors = {key: kept[key][info.name] for key in FACTORS if info.name in kept.get(key, {})}
        found.append(Fragment(info, piece.offset, master, moments, factors))
    return found


def kept_whole(engine: Engine) -> list[Parameter]:
    """Returns the weights of which this rank keeps its whole tensor-parallel shard: under ZeRO 3 the small ones."""
    return [one for one in engine.module.parameters() if getattr(one, "ds_persist", True)]  # set under ZeRO 3 only


def weights(engine: Engine) -> list[Fragment]:
    """Returns what the model computes with of the weights that are kept whole, in its precision (as `master`). Before
    the first `publish` ZeRO 3 has not gathered them: they are left out.
    """
    found = []
    for parameter in kept_whole(engine):
        info = names.info(parameter)
        count = math.prod(info.local_shape)
        if parameter.numel() >= count:
            found.append(Fragment(info, 0, parameter.detach().view(-1).narrow(0, 0, count)))
    return found


def is_saved_here(engine: Engine, info: ParameterInfo) -> bool:
    """Returns whether this rank writes its fragments of a parameter: of equal copies exactly one is saved."""
    return info.name not in engine.copied and _is_counted(engine, info)


def _is_counted(engine: Engine, info: ParameterInfo) -> bool:
    """Returns whether its fragments are those that count, of equal copies on the ranks of this stage."""
    if engine.groups.data_rank > 0 and engine.deepspeed.zero_optimization_stage() == 0:
        return False
    return info.dim is not None or engine.groups.tensor_rank == 0


def saved_fragments(engine: Engine) -> list[Fragment]:
    """Returns what this rank writes of the fragments that it holds."""
    return [fragment for fragment in fragments(engine) if is_saved_here(engine, fragment.info)]


def kept(fragments: Sequence[Fragment]) -> Callable[[], list[Fragment]]:
    """Begins to copy fragments to the host; what comes back waits for the copies, in any thread, and gives them."""
    arrival = keep_on_host([values for fragment in fragments for values in fragment.saved.values()])

    def copies() -> list[Fragment]:
        values = iter(arrival())
        return [_copied(fragment, {kind: next(values) for kind in fragment.saved}) for fragment in fragments]

    return copies


def host_bytes(engine: Engine, fragments: Sequence[Fragment]) -> int:
    """Returns the memory of the host that `kept` takes."""
    values = (values for fragment in fragments for values in fragment.saved.values())
    return kept_bytes(values, pinned=engine.device.type == "cuda")


def _copied(fragment: Fragment, values: dict[str, Tensor]) -> Fragment:
    """Returns the same with other tensors."""
    of = fragment.moments, fragment.factors
    moments, factors = ({kind: values[kind] for kind in kinds if kind in values} for kinds in of)
    return replace(fragment, master=values["master"], moments=moments, factors=factors)


def make_moments(engine: Engine, updates: int) -> None:
    """Gives the optimizer zero moments and its count of updates, to be filled through `fragments`."""
    for flat in {id(piece.flat): piece.flat for piece in _pieces(engine)}.values():
        engine.optimizer.state[flat] = engine.optimizer.fresh_state(flat, updates)


def connect_optimizer(engine: Engine) -> None:
    """Sets which flat tensors of the optimizer hold weights that several stages share. Muon, LAMB and Adafactor, which
    look at whole parameters, also learn which ranges of them lie on this rank.
    """
    optimizer = engine.optimizer
    if engine.device.type == "cpu":
        several = {names.info(weight).name for weight, _ in engine.tied_weights}
        optimizer.shared = {flat for flat, held in _flats(engine) if any(info.name in several for info in held)}
    if not isinstance(optimizer, (Muon, WholeParameters)):
        return
    parameters = {flat: [_whole(engine, info) for info in infos] for flat, infos in _flats(engine)}
    by_name = {whole.info.name: whole for several in parameters.values() for whole in several}
    ranges: dict[Tensor, list[LocalRange]] = {flat: [] for flat in parameters}
    for piece in _pieces(engine):
        if piece.count:
            shard_range = ShardRange(piece.info, piece.offset, piece.count)
            whole, counted = by_name[piece.info.name], _is_counted(engine, piece.info)
            ranges[piece.flat].append(LocalRange(shard_range, whole, piece.start, counted, engine.device))
    contents = {flat: FlatContents(several, ranges[flat]) for flat, several in parameters.items()}
    optimizer.connect(contents, StageSums(engine.groups.stage_group, _copies(engine)))


def _whole(engine: Engine, info: ParameterInfo) -> WholeParameter:
    """Returns a parameter with the matrices that it is made of. A fused bias has as many vectors as its weight has
    matrices; relative positions have one table for each stack.
    """
    if len(info.shape) > 2:
        return WholeParameter(info, Matrices(math.prod(info.shape[:-2]), info.shape[-2]))
    weight = engine.architecture.parameters.get(info.name.replace(".bias", ".weight"))
    return WholeParameter(info, (weight and weight.matrices) or Matrices())


def _copies(engine: Engine) -> list[tuple[ProcessGroup, set[str]]]:
    """Returns the parameters that several pipeline stages hold: the ranks that hold the same of them, and the names."""
    copies: dict[ProcessGroup, set[str]] = {}
    for parameter, group in engine.tied_weights:
        copies.setdefault(group, set()).add(names.info(parameter).name)
    return list(copies.items())


def counted_parts(engine: Engine) -> dict[Tensor, list[tuple[ParameterInfo, int, int]]]:
    """Returns of every tensor that the optimizer updates here the parameters in it: each with its first element there
    and its number of elements. Every element of the model is listed on exactly one rank; pad rows on none.
    """
    found: dict[Tensor, list[tuple[ParameterInfo, int, int]]] = {}
    for piece in _pieces(engine):
        if piece.count and is_saved_here(engine, piece.info):
            found.setdefault(piece.flat, []).append((piece.info, piece.start, piece.count))
    return found


def forget_moments(engine: Engine) -> None:
    """Lets the optimizer start afresh."""
    engine.optimizer.state.clear()


def updates(engine: Engine) -> int:
    """Returns the number of optimizer updates applied so far (steps less the skipped ones)."""
    steps = [state["step"] for state in engine.optimizer.state.values() if "step" in state]
    return int(torch.stack(steps).max()) if steps else 0


def loss_scaler(engine: Engine) -> dict[str, float]:
    """Returns the state of the dynamic loss scaler; empty unless training in fp16."""
    scaler = getattr(engine.deepspeed.optimizer, "loss_scaler", None)
    return {key: getattr(scaler, key) for key in SCALER if engine.deepspeed.fp16_enabled()}


def set_loss_scaler(engine: Engine, state: dict[str, float]) -> None:
    """Continues with the state of a dynamic loss scaler; training in another precision than fp16 has no use for it."""
    for key in SCALER:
        if key in state and engine.deepspeed.fp16_enabled():
            setattr(engine.deepspeed.optimizer.loss_scaler, key, state[key])


@torch.no_grad()
def publish(engine: Engine) -> None:
    """Copies the masters into the weights that the model computes with. Every rank calls this."""
    optimizer, stage = engine.deepspeed.optimizer, engine.deepspeed.zero_optimization_stage()
    if stage in (1, 2):
        type(optimizer).update_lp_params(optimizer)  # DeepSpeed's own: the patched one of a step does less
    elif stage == 3:
        optimizer._partition_all_parameters()
        for group in range(len(optimizer.fp16_groups)):
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)


def _flats(engine: Engine) -> Iterator[tuple[Tensor, list[ParameterInfo]]]:
    """Yields every flat tensor of the optimizer, with the parameters that it holds on any rank of the stage."""
    optimizer, stage = engine.deepspeed.optimizer, engine.deepspeed.zero_optimization_stage()
    groups: Iterable[tuple[list[Parameter], Tensor]]
    if stage == 0:
        groups = (([parameter], parameter) for parameter in engine.module.parameters())
    elif stage == 3:
        groups = zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, strict=True)
    else:
        groups = _groups_of_stages_1_and_2(optimizer)
    for group, flat in groups:
        yield flat, [names.info(parameter) for parameter in group]


def _pieces(engine: Engine) -> Iterator[_Piece]:
    optimizer, stage = engine.deepspeed.optimizer, engine.deepspeed.zero_optimization_stage()
    places: Iterable[_Place]
    if stage == 0:
        places = ((parameter, parameter, 0, 0, parameter.numel()) for parameter in engine.module.parameters())
    elif stage == 3:
        places = _places_of_stage_3(optimizer, engine.groups.data_rank)
    else:
        places = _places_of_stages_1_and_2(optimizer)
    for parameter, flat, start, offset, count in places:
        info = names.info(parameter)
        yield _Piece(info, flat, start, offset, max(0, min(count, math.prod(info.local_shape) - offset)))


def _groups_of_stages_1_and_2(optimizer: Any) -> Iterator[tuple[list[Any], Tensor]]:
    """Yields parameters, to which DeepSpeed has attached where they lie, and this rank's partition of them."""
    bf16 = hasattr(optimizer, "bf16_groups")
    groups = optimizer.bf16_groups if bf16 else optimizer.bit16_groups
    flats = optimizer.fp32_groups_flat_partition if bf16 else optimizer.single_partition_of_fp32_groups
    yield from zip(groups, flats, strict=True)


def _places_of_stages_1_and_2(optimizer: Any) -> Iterator[_Place]:
    for group, flat in _groups_of_stages_1_and_2(optimizer):
        for parameter in group:
            mapping = parameter._hp_mapping
            if mapping is not None:  # None: all of it lies in other ranks' partitions
                here, there = mapping.lp_fragment_address, mapping.hp_fragment_address
                yield parameter, flat, there.start, here.start, here.numel


def _places_of_stage_3(optimizer: Any, data_rank: int) -> Iterator[_Place]:
    for group in optimizer.fp16_groups:
        for parameter in group:
            index, start, count = optimizer.grad_position[optimizer.get_param_id(parameter)]
            flat = optimizer.fp32_partitioned_groups_flat[index]
            yield parameter, flat, start, data_rank * count, count
