"""What waits for others ends, whatever they do."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator

import pytest

from gpt1_ds.common.deadline import each_within, limited, within
from tests.helpers.processes import wait_for

NEVER = threading.Event()


def test_answers_and_errors_come_back() -> None:
    assert within(5, lambda: 7) == 7
    with pytest.raises(KeyError, match="x"):
        within(5, lambda: {}["x"])
    assert list(each_within(5, range(1000))) == list(range(1000))


def test_silence_ends() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="no answer within 0 s"):
        within(0.1, NEVER.wait)
    assert time.monotonic() - began < 5


def test_items_before_the_silence_arrive() -> None:
    def items() -> Iterator[int]:
        yield from (1, 2)
        NEVER.wait()

    found = each_within(0.3, items())
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(TimeoutError):
        next(found)


def test_who_stops_early_leaves_no_thread() -> None:
    found = each_within(5, iter(int, 1))
    assert next(found) == 0
    found.close()  # type: ignore[attr-defined]
    wait_for(lambda: not any(one.name == "waits-for-others" and one.is_alive() for one in _others()), 10)


def _others() -> list[threading.Thread]:
    """Those that do not wait for `NEVER`, as earlier tests' do."""
    return [thread for thread in threading.enumerate() if thread not in BEFORE]


BEFORE: list[threading.Thread] = []


@pytest.fixture(autouse=True)
def before() -> None:
    BEFORE[:] = threading.enumerate()


class Stuck(io.BytesIO):
    """Gives what it has, then never ends."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(size) or (NEVER.wait() and b"") or b""


def test_a_stream_is_read_as_it_is_until_it_is_silent() -> None:
    content = bytes(range(256)) * 100
    with limited(io.BytesIO(content), 5) as stream:
        assert stream.seek(-10, io.SEEK_END) == len(content) - 10
        assert (stream.read(), stream.tell()) == (content[-10:], len(content))
        stream.seek(3)
        assert stream.read(5) == content[3:8]
    with limited(Stuck(content), 0.3) as stream:
        assert stream.read(len(content)) == content
        with pytest.raises(TimeoutError):
            stream.read(1)
