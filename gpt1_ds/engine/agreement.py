"""What ranks must have in common before they compute together: configuration, code, versions and kind of device.

They compare it through the store at which they meet, before any collective: where ranks differ in what decides their
control flow, even making the process groups would hang.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch._C._distributed_c10d import Store

import gpt1_ds
from gpt1_ds.common.errors import ConfigError, WorldError
from gpt1_ds.common.files import this_node
from gpt1_ds.common.versions import installed, source_hash
from gpt1_ds.config import Config
from gpt1_ds.config.values import inside

PACKAGES = ("torch", "deepspeed", "megatron-core", "numpy")
MAY_DIFFER = {  # key -> why hosts may have values of their own
    "train.micro_batch": "auto fits it to each host's memory; all ranks then take the smallest (session.py)",
}
LONGEST = 120  # characters of a value that are shown
_SAME, _DIFFERENT = "same", "different"


def facts(config: Config, device: str, arguments: Mapping[str, object]) -> dict[str, str]:
    """Returns key -> value of all that must be the same on every rank: versions first, as they explain the rest; then
    the kind of `device`, the `arguments` of a command beside its configuration, and every key of the configuration.
    """
    versions = {name: str(installed(name)) for name in PACKAGES}
    python = ".".join(platform.python_version_tuple()[:2])
    code = f"{gpt1_ds.__version__} (code {source_hash()})"
    found = {"python": python, **versions, "gpt1-ds": code, "device": device}
    found |= {key: value for part in (arguments, vars(config)) for key, value in _leaves(part)}
    return {key: value for key, value in found.items() if key not in MAY_DIFFER}


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields (dotted key, text) of every value inside dataclasses, mappings and lists; an empty one counts as a
    value.
    """
    inner = inside(value)
    if not inner:
        yield key, str(value)
    for name, one in inner.items():
        yield from _leaves(one, f"{key}.{name}" if key else str(name))


def digest(parts: Iterable[bytes]) -> str:
    """Returns the first 16 hex digits of a sha256 of what ranks have read: of the parts and where each ends."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()[:16]


def first_difference(
    found: Sequence[Mapping[str, str]], hosts: Sequence[str], way_out: Callable[[str], str]
) -> str | None:
    """Returns one line on the first key whose values differ between ranks: the key, each value with its ranks and their
    hosts, and its way out; None where all are the same. `found` and `hosts` are in rank order.
    """
    keys = list(dict.fromkeys(key for one in found for key in one))
    different = [key for key in keys if len({one.get(key) for one in found}) > 1]
    if not different:
        return None
    key, *others = different
    ranks: dict[str | None, list[int]] = {}
    for rank, one in enumerate(found):
        ranks.setdefault(one.get(key), []).append(rank)
    values = ", ".join(f"{_shown(value)} on {_place(of, hosts)}" for value, of in ranks.items())
    more = f" ({len(others)} more differ: {', '.join(others[:3])}{', ...' * (len(others) > 3)})" if others else ""
    return f"{key}: {values}{more}; {way_out(key)}"


def _shown(value: str | None) -> str:
    if value is None:
        return "nothing"
    text = value.replace("\n", "\\n") or "''"
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def _place(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Returns ranks as people name them: "ranks 1, 4-7 (host b)"; without the host where all ranks are on one."""
    spans: list[tuple[int, int]] = []
    for rank in ranks:
        first = spans.pop()[0] if spans and spans[-1][1] == rank - 1 else rank
        spans.append((first, rank))
    numbers = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    names = list(dict.fromkeys(hosts[rank] for rank in ranks))
    there = f"host{'s' * (len(names) > 1)} {', '.join(names[:3])}{' and others' * (len(names) > 3)}"
    return f"rank{'s' * (len(ranks) > 1)} {numbers}" + (f" ({there})" if len(set(hosts)) > 1 else "")


def same_start(key: str) -> str:
    """Returns what a person does about ranks that were started with different values of `key`."""
    if key in ("python", *PACKAGES, "gpt1-ds"):
        return f"install the same {key} on every host"
    if key == "device":
        return "give every host GPUs, or say train.device=cpu on all"
    return "start all ranks with the same arguments and configuration"


def compare(store: Store, rank: int, world: int, facts: Mapping[str, str]) -> None:
    """Compares `facts` with those of all other ranks, which call this with the same `store`. They send hashes; the
    facts themselves only where the hashes differ.

    Raises ConfigError on all ranks alike, with the line of `first_difference`, and WorldError on rank 0 where a rank
    does not come.
    """
    ranks = range(world)
    facts = {"WORLD_SIZE": str(world), **facts}  # a launcher's, or one that a person exports on each host
    text = json.dumps([this_node(), facts])
    store.set(f"hash {rank}", hashlib.sha256(json.dumps(facts).encode()).hexdigest())
    if rank == 0:
        hashes = _hashes(store, world)
        store.set("verdict", _SAME if len(set(hashes)) == 1 else _DIFFERENT)
    if store.get("verdict").decode() == _SAME:
        return
    store.set(f"facts {rank}", text)
    if rank == 0:
        known = [json.loads(one) for one in store.multi_get([f"facts {one}" for one in ranks])]
        line = first_difference([one for _, one in known], [host for host, _ in known], same_start)
        store.set("line", line or "")
    error = ConfigError(store.get("line").decode())
    error.on_all_ranks = True
    store.set(f"left {rank}", "")
    if rank == 0:  # the store may end with this process: the others have read the line
        store.wait([f"left {one}" for one in ranks])
    raise error


def _hashes(store: Store, world: int) -> list[bytes]:
    """Returns what all ranks have sent. Raises WorldError naming those that did not, once the store has waited long
    enough.
    """
    try:
        return store.multi_get([f"hash {rank}" for rank in range(world)])
    except RuntimeError:
        silent = [rank for rank in range(world) if not store.check([f"hash {rank}"])]
        if not silent:
            raise
        raise WorldError(
            f"{_place(silent, [''] * world)} of {world} did not come: see what their launcher said on the other hosts, "
            "and give each host its own number"
        ) from None
