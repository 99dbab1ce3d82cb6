"""Time limits for what waits for others: a server may accept a connection and never answer, and not every library has
limits of its own.
"""

from __future__ import annotations

import contextlib
import io
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TypeVar, cast

ANSWER_SECONDS = 60.0  # for a server to answer one question, or to send the next part of an answer
SILENCE_SECONDS = 20.0  # between two parts of what the Hugging Face hub sends; its client then asks again, five times
LISTING_SECONDS = 600.0  # for a server to list a folder, however large
SLOWEST = 100_000  # bytes per second of an upload that is waited for
T = TypeVar("T")
_END = object()


def upload_seconds(size: int) -> float:
    """Returns how long a file of `size` bytes may take on its way, and its answer."""
    return ANSWER_SECONDS + size / SLOWEST


def within(seconds: float, call: Callable[[], T]) -> T:
    """Returns what `call` gives. It runs in a thread of its own, which is abandoned when it takes longer than
    `seconds`. Raises TimeoutError then, and whatever the call raises.
    """
    return next(each_within(seconds, _once(call)))


def _once(call: Callable[[], T]) -> Iterator[T]:
    yield call()


def each_within(seconds: float, items: Iterable[T]) -> Iterator[T]:
    """Yields `items`, which are made in a thread of their own, some ahead. Raises TimeoutError where one takes longer
    than `seconds`, and whatever making them raises.
    """
    made: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(maxsize=64)
    wanted = threading.Event()
    wanted.set()

    def hand_over(item: Any, error: BaseException | None = None) -> None:
        while wanted.is_set():
            with contextlib.suppress(queue.Full):
                made.put((item, error), timeout=1.0)
                return

    def make() -> None:
        try:
            for item in items:
                hand_over(item)
                if not wanted.is_set():
                    return
            hand_over(_END)
        except BaseException as error:
            hand_over(_END, error)

    threading.Thread(target=make, name="waits-for-others", daemon=True).start()
    try:
        while True:
            try:
                item, error = made.get(timeout=seconds)
            except queue.Empty:
                raise TimeoutError(f"no answer within {seconds:.0f} s") from None
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        wanted.clear()


class LimitedReader(io.RawIOBase):
    """A stream each of whose reads ends within `seconds`. Raises TimeoutError."""

    def __init__(self, stream: BinaryIO, seconds: float) -> None:
        self._stream, self._seconds = stream, seconds

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._stream.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readinto(self, buffer: Any) -> int:
        found = within(self._seconds, lambda: self._stream.read(len(buffer)))
        buffer[: len(found)] = found
        return len(found)


def limited(stream: Any, seconds: float) -> BinaryIO:
    """Returns `stream` with a limit for each read, in blocks so large that a thread for each costs nothing."""
    return cast(BinaryIO, io.BufferedReader(LimitedReader(stream, seconds), 1 << 20))
