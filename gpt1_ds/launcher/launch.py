"""Local ranks: processes forked from a server that has torch, DeepSpeed and Megatron loaded, so that they start at
once.

They rendezvous through a file in a private folder (no port is opened), die with their launcher, and when one fails the
others are ended and its error is shown once. This module itself never imports torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from gpt1_ds.common import log, memory, stop_signals
from gpt1_ds.common.errors import (
    EXIT_FAILURE,
    LaunchError,
    LostRankError,
    StoppedRankError,
    TrainingError,
    UserError,
)
from gpt1_ds.common.files import explain, this_node
from gpt1_ds.launcher import network

STORE_VARIABLE = "GPT1_DS_STORE"  # a rendezvous file; set for ranks that this module starts
ENDING = "ending"  # a file beside it, once the launcher ends the ranks
_PIPE: list[Connection] = []  # of a rank that this module started: to its launcher
_STARTED: list[Any] = []  # ranks that this process started, from any thread, and has not seen end
# What nearly every rank imports: the fork server does it once, where each rank took a second of its core. By name,
# because nothing here may depend on them.
_PRELOADED = [
    *("gpt1_ds.launcher.preload", "gpt1_ds.training.pretraining", "gpt1_ds.training.finetuning"),
    *("gpt1_ds.engine.plain", "gpt1_ds.engine.pipelined"),
]
SHELL_STEPS = 0xFFFFFFF0  # SLURM's numbers of steps from here on are its own: a job's shell has the tasks of the job
GRACE_SECONDS = 3.0  # between asking surviving ranks to end and ending them
_PEER_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "Timed out waiting",
)


@dataclass(frozen=True)
class Failure:
    """Why a rank ended. `secondary`: only because another rank had gone."""

    rank: int
    text: str
    code: int
    secondary: bool = False
    is_terminated: bool = False


class TerminatedRankError(LostRankError):
    """A rank that SIGTERM ended, because it had nothing to save."""


class InterruptedRankError(TrainingError):
    """A rank that Ctrl-C ended; `reasons` are the arguments of its KeyboardInterrupt."""

    def __init__(self, *reasons: str) -> None:
        super().__init__(": ".join(["interrupted", *reasons]))
        self.reasons = reasons

    def __reduce__(self) -> tuple[type[InterruptedRankError], tuple[str, ...]]:
        return type(self), self.reasons


def world(nproc: int | None) -> int:
    """Returns the number of ranks of this program: `--nproc`, else the launcher's, else one. Raises LaunchError for
    fewer than one, and where this is none of them.
    """
    if nproc is not None:
        if nproc < 1:
            raise LaunchError(f"--nproc={nproc}: at least 1 rank is needed")
        return nproc
    _adopt_slurm_step()
    rank, ranks = (os.environ.get(name) or default for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    if not (rank.isdecimal() and ranks.isdecimal() and int(rank) < int(ranks)):
        raise LaunchError(
            f"RANK={rank}, WORLD_SIZE={ranks}: there is no such rank; a launcher sets both, and where there is none: "
            "unset RANK WORLD_SIZE LOCAL_RANK"
        )
    return int(ranks)


def start(target: str, arguments: tuple[Any, ...], nproc: int | None) -> int:
    """Runs `module:function` on all ranks: on N local ones that are started here, or as the one rank that this is."""
    if nproc is not None:
        return launch(target, arguments, nproc)
    if (ranks := world(None)) > 1 and not {"MASTER_ADDR", "MASTER_PORT"} <= set(os.environ):
        way_out = "use torchrun or --nproc"
        if "SLURM_STEP_ID" in os.environ:
            way_out += ", or before srun: export MASTER_PORT=29500 MASTER_ADDR=$(scontrol show hostnames | head -n 1)"
        raise LaunchError(f"WORLD_SIZE is above 1 but MASTER_ADDR and MASTER_PORT are not set; {way_out}")
    if ranks > 1:
        network.port()
    from gpt1_ds.launcher import libraries

    if "TORCHELASTIC_RUN_ID" in os.environ:
        _be_killed_with_parent()  # torchrun's agent: without it nobody would end this rank
    libraries.load()
    rank = int(os.environ.get("RANK") or "0")
    try:
        return int(_resolve(target)(*arguments))
    except (UserError, TrainingError) as error:
        if rank == 0 or not error.on_all_ranks:
            raise
        sys.exit(error.code)
    except (RuntimeError, MemoryError) as error:
        if (short := memory.shortage(error)) is not None:
            raise TrainingError(f"rank {rank}: {short}") from error
        if any(text in str(error) for text in _PEER_LOST):
            raise LaunchError(f"rank {rank} lost contact with another rank;\nits log: logs/rank-{rank}.log") from None
        raise


def _adopt_slurm_step() -> None:
    """Inside an srun step (not in a bare batch shell, nor in salloc's) SLURM's own variables say who this rank is."""
    step = os.environ.get("SLURM_STEP_ID", "")
    if "RANK" not in os.environ and step.isdecimal() and int(step) < SHELL_STEPS:
        names = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}
        os.environ.update({ours: os.environ[theirs] for ours, theirs in names.items() if theirs in os.environ})


def _resolve(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def launch(target: str, arguments: tuple[Any, ...], ranks: int) -> int:
    """Runs `module:function` with `arguments` on N local ranks, and returns the program's exit code.

    Raises UserError or TrainingError when a rank did, and LostRankError with the failing rank's own message when it
    failed in another way. A signal that ended the ranks ends this process as it would have without them.
    """
    results = run(target, arguments, ranks)
    return max(int(result or 0) for result in results)


def run(target: str, arguments: tuple[Any, ...], ranks: int) -> list[Any]:
    """Runs `module:function` as `launch` does, and returns what each rank's function returned."""
    folder = Path(tempfile.mkdtemp(dir=network.folder()))
    processes, pipes, kills = [], [], memory.kernel_kills()
    context = server()
    try:
        for rank in range(ranks):
            here, there = context.Pipe(duplex=False)
            place = (rank, ranks, str(folder / "store"))
            process = context.Process(target=_rank_main, args=(target, arguments, place, there), name=f"rank-{rank}")
            process.start()
            there.close()
            processes.append(process)
            _STARTED.append(process)
            pipes.append(here)
        with _forwarded_signals() as asked:
            try:
                return _collect(processes, pipes, kills)
            except (TerminatedRankError, InterruptedRankError) as error:
                if not asked:
                    raise
                ended = error
            except (UserError, TrainingError) as error:
                error.may_restart &= not asked  # who asked for the end wants no new beginning
                raise
    finally:
        with contextlib.suppress(OSError):  # a full disk
            (folder / ENDING).touch()
        _end(processes)
        log.clear_line()
        for process in processes:
            _STARTED.remove(process)
        shutil.rmtree(folder, ignore_errors=True)
    if isinstance(ended, InterruptedRankError) or asked[0] == signal.SIGINT:
        raise KeyboardInterrupt(*getattr(ended, "reasons", ()))
    with stop_signals.undone(partial(shutil.rmtree, network.folder(), ignore_errors=True)):
        signal.raise_signal(asked[0])
    ended.may_restart = False  # a program that continues has a handler of its own
    raise ended


def server() -> multiprocessing.context.ForkServerContext:
    """Returns the fork server, started once per process; its first rank waits for the libraries to load, later ones do
    not.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    network.folder()  # in which it listens
    if kept := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):  # importing torch makes it; nobody sees the server's errors
        Path(kept).mkdir(parents=True, exist_ok=True)
    if _in_main_thread():  # what is sent to the whole group is for us to pass on: without its server no rank lives
        for start in (multiprocessing.resource_tracker.ensure_running, multiprocessing.forkserver.ensure_running):
            with stop_signals.kept_for_later():  # apart, because the tracker unblocks some of them at its end
                start()
    return context


def _rank_main(target: str, arguments: tuple[Any, ...], place: tuple[int, int, str], pipe: Connection) -> None:
    rank, ranks, store = place
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the launcher passes a lost terminal on
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals.NUMBERS)  # which the fork server blocks
    _die_with_parent()
    _PIPE.append(pipe)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
    os.environ.update({STORE_VARIABLE: store, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"})
    try:
        pipe.send(("done", _resolve(target)(*arguments)))
    except (UserError, TrainingError) as error:
        pipe.send(("known", error))
        os._exit(error.code)
    except KeyboardInterrupt as interrupt:
        pipe.send(("known", InterruptedRankError(*map(str, interrupt.args))))
        os._exit(EXIT_FAILURE)
    except BaseException as error:
        explained = explain(error) if isinstance(error, OSError) else None
        if explained is not None:
            pipe.send(("known", explained))
            os._exit(explained.code)
        if (short := memory.shortage(error)) is not None:
            pipe.send(("known", TrainingError(f"rank {rank}: {short}")))
            os._exit(EXIT_FAILURE)
        text = "".join(traceback.format_exception(error)).rstrip()
        pipe.send(("failed", Failure(rank, text, EXIT_FAILURE, any(lost in text for lost in _PEER_LOST))))
        os._exit(EXIT_FAILURE)


def signal_ranks(number: int) -> None:
    """Sends a signal to every rank that this process started and that still runs: SIGTERM asks to save and end."""
    for process in tuple(_STARTED):
        if process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)


def is_ending() -> bool:
    """Returns whether this rank's launcher ends all ranks, as it does after the loss of one: its SIGTERM asks for no
    save.
    """
    store = os.environ.get(STORE_VARIABLE)
    return store is not None and Path(store).with_name(ENDING).exists()


def tell(error: TrainingError | UserError) -> bool:
    """From any thread of a rank: let the launcher end the run with this error. False when this module is not it."""
    for pipe in _PIPE:
        pipe.send(("known", error))
    return bool(_PIPE)


def _die_with_parent() -> None:
    """Linux: be killed when the fork server goes. It goes with the launcher, unless a rank holds its lifeline open."""
    lifeline = multiprocessing.forkserver._forkserver._forkserver_alive_fd  # type: ignore[attr-defined]
    if lifeline is not None:
        os.close(lifeline)
        multiprocessing.forkserver._forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]
    _be_killed_with_parent()
    if os.getppid() == 1:
        os._exit(EXIT_FAILURE)


def _be_killed_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux has it
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _collect(processes: list[Any], pipes: list[Connection], kills: int) -> list[Any]:
    """Waits for every rank; results in rank order. The first failure is given a moment to be joined by its cause. The
    kernel had killed `kills` processes before.
    """
    results: dict[int, Any] = {}
    failures: list[Failure] = []
    deadline = None
    open_ranks = set(range(len(processes)))
    while open_ranks and (deadline is None or time.monotonic() < deadline):
        waiting = {pipes[rank]: rank for rank in open_ranks}
        for ready in multiprocessing.connection.wait(list(waiting), timeout=0.2):
            rank = waiting[cast(Connection, ready)]
            open_ranks.discard(rank)
            outcome = _outcome(rank, processes[rank], pipes[rank], kills)
            if isinstance(outcome, (UserError, TrainingError)):
                raise outcome
            if isinstance(outcome, Failure):
                failures.append(outcome)
                deadline = deadline or time.monotonic() + 1.0
            else:
                results[rank] = outcome[0]
    if failures:
        first = min(failures, key=lambda failure: failure.secondary)
        kind = TerminatedRankError if any(failure.is_terminated for failure in failures) else LostRankError
        raise kind(f"rank {first.rank} failed:\n{first.text}")
    return [results[rank] for rank in range(len(processes))]


def _outcome(rank: int, process: Any, pipe: Connection, kills: int) -> tuple[Any] | Failure | UserError | TrainingError:
    try:
        kind, value = pipe.recv()
    except EOFError:
        process.join(timeout=GRACE_SECONDS)
        code = process.exitcode
        if code == -signal.SIGKILL and memory.kernel_kills() > kills:
            short = f"memory ran out on {this_node()}: the kernel killed the rank; {memory.LESS_MEMORY}"
            return StoppedRankError(f"rank {rank}: {short}")
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            text = f"it was killed by {name}{_hint(-code)}"
            return Failure(rank, text, EXIT_FAILURE, is_terminated=code == -signal.SIGTERM)
        return Failure(rank, f"it ended with exit code {code} without a word", EXIT_FAILURE)
    return (value,) if kind == "done" else value


def _hint(number: int) -> str:
    hints = {
        signal.SIGKILL: " (by a person, or by the system when memory ran out: see dmesg)",
        signal.SIGBUS: " (a file that it had mapped was cut short: `gpt1-ds data verify` names a damaged shard)",
    }
    return hints.get(signal.Signals(number), "")


def _end(processes: list[Any]) -> None:
    """Asks the ranks that still run to end, then end them."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        process.join(timeout=max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


@contextlib.contextmanager
def _forwarded_signals() -> Iterator[list[int]]:
    """SIGTERM, Ctrl-C and a lost terminal ask the ranks to save and end; a second Ctrl-C ends them. Yields the signals
    that have come so far.
    """
    asked: list[int] = []

    def forward(number: int, _: Any) -> None:
        asked.append(number)
        if number == signal.SIGINT and len(asked) > 2:
            raise KeyboardInterrupt
        signal_ranks(signal.SIGTERM)

    if sys.platform == "win32" or not _in_main_thread():
        yield asked
        return
    before = stop_signals.listen(forward)
    try:
        yield asked
    finally:
        stop_signals.restore(before)


def _in_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()
