"""Places that fsspec knows: `s3://`, `gs://`, `https://`, `file://` and what else is installed. Every question has a
time limit, and whatever a library raises is one line that shows nothing secret.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from gpt1_ds.common import deadline
from gpt1_ds.common.errors import DataError, UserError, WorldError, one_line

T = TypeVar("T")
_SECRET = re.compile(r"(?<=://)[^/]*@|\?.*")  # who asks, and what signs a remote address
WAYS_OUT: dict[int | None, str] = {  # of a store that is a disk
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there",
    errno.EROFS: "make it writable again",
}
_OURS = ("builtins", "gpt1_ds")  # where an exception that is a bug of ours is defined


def without_secrets(address: str) -> str:
    return _SECRET.sub("", address) if "://" in address else address


def _said(problem: Exception, address: str) -> str:
    """Returns what a library says of an address, without its secrets: some libraries repeat a part of it."""
    said = without_secrets(str(problem))
    for secret in _SECRET.findall(address):
        said = said.replace(secret, "")
    return one_line(said)


def file_system(address: str, **options: Any) -> tuple[Any, str]:
    """Returns (fsspec's file system, the place in it) of an address. Call it inside `reached`."""
    import fsspec

    system, place = asked(lambda: fsspec.core.url_to_fs(address, **options))
    return system, place


def check_address(address: str, key: str, error: type[UserError]) -> None:
    """Raises `error`, which names the `key`, for an address that no library installed here knows. It asks no server."""
    shown, protocol = f"{key}={without_secrets(address)}", address.partition("://")[0]
    try:
        import fsspec

        fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as problem:
        missing = {"s3": "pip install 'gpt1-ds[store]'", "gs": "pip install gcsfs", "az": "pip install adlfs"}
        way_out = missing.get(protocol, "look at the address")
        raise error(f"{shown}: {one_line(str(problem)).rstrip('.')}; {way_out}") from None


def asked(question: Callable[[], T], seconds: float | None = None) -> T:
    """Returns the answer. Raises TimeoutError where it takes longer than `seconds`, by default those of one answer, and
    whatever the question raises.
    """
    return deadline.within(deadline.ANSWER_SECONDS if seconds is None else seconds, question)


@contextmanager
def reached(address: str, access: Literal["read", "write"] = "read") -> Iterator[None]:
    """Errors of any file system in one line: DataError where the person has to fix something, WorldError where the
    same may succeed later. `access` is what is tried there.
    """
    shown = without_secrets(address)
    try:
        yield
    except UserError:
        raise
    except (ImportError, ValueError) as problem:  # its library is not installed; an unknown protocol
        raise DataError(f"{shown}: {_said(problem, address)}") from None
    except FileNotFoundError:
        raise DataError(f"{shown}: no such file; look at the address") from None
    except PermissionError:
        raise DataError(f"{shown}: no right to {access} it; look at your credentials") from None
    except Exception as problem:
        # clients have classes of their own that are no OSError: botocore's of a server that is away, for one
        if not isinstance(problem, OSError) and type(problem).__module__.partition(".")[0] in _OURS:
            raise
        why = _said(problem, address)
        if "Credential" in type(problem).__name__:
            way_out = "set those of your store, like AWS_ACCESS_KEY_ID, or its profile"
            raise DataError(f"{shown}: {why}; {way_out}") from None
        tried = "read" if access == "read" else "written"
        way_out = WAYS_OUT.get(getattr(problem, "errno", None), "run again when the network is well")
        raise WorldError(f"{shown}: cannot be {tried} ({why}); {way_out}") from None
