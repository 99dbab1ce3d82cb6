"""Worker processes that do not outlive their parent, and whose end is noticed.

Each worker hangs on its own pipe: when the parent dies, however it dies, the pipe closes and the worker leaves; when a
worker dies, the parent reads the end of its pipe instead of waiting for ever (both hold for kill -9).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from gpt1_ds.common.errors import DataError, UserError

Item = TypeVar("Item")
Result = TypeVar("Result")


def run(task: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Generator[tuple[Item, Result]]:
    """Yields (item, task(item)) as results come in. One worker means this process.

    `task` and items are pickled, so `task` may be an object that loads what is heavy on its first call. Errors of the
    task are raised here. Raises DataError when a worker is killed.
    """
    if min(workers, len(items)) <= 1:
        for item in items:
            yield item, task(item)
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    waiting = deque(items)
    busy: dict[Connection, Item] = {}
    processes = {}
    try:
        for _ in range(min(workers, len(items))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, task), daemon=True)
            with _interrupts_deferred():
                process.start()
            theirs.close()
            processes[ours] = process
            _hand_over(ours, waiting, busy)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                item = busy.pop(ready)
                try:
                    result = ready.recv()
                except (EOFError, OSError):
                    raise _death(processes[ready], item) from None
                if isinstance(result, BaseException):
                    raise result
                _hand_over(ready, waiting, busy)
                yield item, result
    finally:
        for connection, process in processes.items():
            process.terminate()
            process.join()
            connection.close()


def parent_is_alive() -> bool:
    """Returns whether somebody still waits for this worker's result; always true in the main process."""
    parent = multiprocessing.parent_process()
    return parent is None or parent.is_alive()


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Ctrl-C reaches the whole process group, but only the parent answers it: workers started in here inherit the
    blocked signal, and the parent sees a Ctrl-C of this moment when the worker has all that it needs to start.
    """
    resource_tracker.ensure_running()  # its first start unblocks the signal, so that has to come before
    asked: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    # another thread (a progress bar's) may take the signal, and Python then interrupts the main thread: hence a handler
    handler = signal.signal(signal.SIGINT, lambda number, _: asked.append(number)) if in_main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if in_main:
            signal.signal(signal.SIGINT, handler)
        if asked:
            signal.raise_signal(signal.SIGINT)


def _hand_over(connection: Connection, waiting: deque[Item], busy: dict[Connection, Item]) -> None:
    if not waiting:
        return
    item = waiting.popleft()
    busy[connection] = item
    with contextlib.suppress(OSError):  # the worker is gone: reading from it says so
        connection.send(item)


def _serve(connection: Connection, task: Callable[[Any], Any]) -> None:
    while True:
        try:
            item = connection.recv()
        except (EOFError, OSError):
            return
        result: Any
        try:
            result = task(item)
        except (UserError, OSError) as error:
            result = error
        except Exception:
            result = RuntimeError(f"a worker failed on {item}:\n{traceback.format_exc()}")
        try:
            connection.send(result)
        except OSError:
            return


def _death(process: Any, item: object) -> DataError:
    process.join()
    code = process.exitcode
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return DataError(
        f"{item}: the worker that read it {how}; if memory ran out, use fewer --workers. Run again: finished parts "
        "are kept"
    )
