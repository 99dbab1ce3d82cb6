"""Do the ranks' collectives fit together? Every rank waits in each of its own until all who take part are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tools.fakecuda.counter import Collective

SEND, RECEIVE = "send", "recv"


def deadlock(ranks: Mapping[int, Sequence[Collective]]) -> str | None:
    """Where the ranks of a world stop, each having issued these in this order; None where all come to an end.

    Nothing is buffered: a send waits for its receive. Every member of every group must be in `ranks`; raises KeyError.
    """
    at = dict.fromkeys(ranks, 0)

    def waiting(rank: int) -> Collective | None:
        calls, place = ranks[rank], at[rank]
        return calls[place] if place < len(calls) else None

    moved = True
    while moved:
        moved = False
        for rank in ranks:
            call = waiting(rank)
            while call is not None:
                members = call.ranks if call.peer is None else (rank, call.peer)
                if not all(_fit(rank, call, member, waiting(member)) for member in members):
                    break
                for member in members:
                    at[member] += 1
                moved, call = True, waiting(rank)
    stuck = [(rank, call) for rank in ranks if (call := waiting(rank)) is not None]
    return "; ".join(f"rank {rank} at {at[rank]}: {_said(call)}" for rank, call in stuck) or None


def wire_bytes(call: Collective) -> float:
    """That one rank sends, as rings do: an all-reduce twice (n - 1) / n of its bytes, the others once."""
    size, ranks = call.bytes, len(call.ranks)
    if call.kind == SEND:
        return size
    if call.kind == RECEIVE or ranks == 1:
        return 0.0
    return (2 if call.kind.startswith("allreduce") else 1) * (ranks - 1) / ranks * size


def _fit(rank: int, call: Collective, other_rank: int, other: Collective | None) -> bool:
    if other is None:
        return False
    if rank == other_rank:
        return True
    if (call.type, call.bytes, call.ranks, call.backend) != (other.type, other.bytes, other.ranks, other.backend):
        return False
    if call.peer is not None:
        return other.peer == rank and {call.kind, other.kind} == {SEND, RECEIVE}
    return call.kind == other.kind


def _said(call: Collective) -> str:
    return f"{call.kind} of {call.bytes} bytes {call.type} among {call.ranks} (peer {call.peer}) at {call.place}"
