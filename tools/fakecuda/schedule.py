"""Do the ranks' collectives fit together? Every rank waits in each of its own until all who take part are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tools.fakecuda.counter import Collective

SEND, RECEIVE = "send", "recv"


def deadlock(ranks: Mapping[int, Sequence[Collective]]) -> str | None:
    """Where the ranks of a world stop, each having issued these in this order; None where all come to an end.

    Nothing is buffered: a send waits for its receive. Members of a group that are not in `ranks` are not waited for.
    """
    at = dict.fromkeys(ranks, 0)
    while waiting := {rank: calls[at[rank]] for rank, calls in ranks.items() if at[rank] < len(calls)}:
        moved = False
        for rank, call in waiting.items():
            members = _members(rank, call, ranks)
            if any(waiting.get(member) is None for member in members):
                continue
            if all(_fit(rank, call, member, waiting[member]) for member in members):
                for member in members:
                    at[member] += 1
                moved = True
                break
        if not moved:
            return "; ".join(f"rank {rank} at {at[rank]}: {_said(call)}" for rank, call in waiting.items())
    return None


def wire_bytes(call: Collective) -> float:
    """That one rank sends, as rings do: an all-reduce twice (n - 1) / n of its bytes, the others once."""
    size, ranks = call.bytes, len(call.ranks)
    if call.kind == SEND:
        return size
    if call.kind == RECEIVE or ranks == 1:
        return 0.0
    return (2 if call.kind.startswith("allreduce") else 1) * (ranks - 1) / ranks * size


def _members(rank: int, call: Collective, ranks: Mapping[int, Sequence[Collective]]) -> tuple[int, ...]:
    if call.peer is not None:
        return (rank, call.peer)
    return tuple(member for member in call.ranks if member in ranks)


def _fit(rank: int, call: Collective, other_rank: int, other: Collective) -> bool:
    if rank == other_rank:
        return True
    if (call.type, call.bytes, call.ranks, call.backend) != (other.type, other.bytes, other.ranks, other.backend):
        return False
    if call.peer is not None:
        return other.peer == rank and {call.kind, other.kind} == {SEND, RECEIVE}
    return call.kind == other.kind


def _said(call: Collective) -> str:
    return f"{call.kind} of {call.bytes} bytes {call.type} among {call.ranks} (peer {call.peer}) at {call.place}"
