"""The tracker's end of a sink: a process that a run starts and feeds (tracking/sinks.py).

Every line of standard input is [method, arguments]; every line of standard output is for people. The process exits with
0 when it has done what it could or said why not. SIGALRM ends it when the tracker's service does not answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import IO, Any

from gpt1_ds.common import stop_signals
from gpt1_ds.tracking.sinks import GONE

FIRST_PATIENCE = 120  # seconds for the first message, with which the tracker's library is loaded
PATIENCE = 60  # for each of the others, unless the first says

Begin = Callable[[dict[str, Any], IO[str]], Any]  # (first message, lines for people) -> an object with its methods


def follow(name: str, begin: Begin, messages: Iterator[str], people: IO[str]) -> None:
    """Does what `messages` say, up to the first thing that the tracker cannot do. Where they end without a `finish`,
    whoever sent them was killed.
    """
    segment: Any = None
    patience = PATIENCE
    try:
        for message in messages:
            method, arguments = json.loads(message)
            signal.alarm(FIRST_PATIENCE if segment is None else patience)
            if segment is None:
                patience = int(arguments.get("patience", PATIENCE))
                segment = begin(arguments, people)
            else:
                getattr(segment, method)(**arguments)
            if method == "finish":
                return
            signal.alarm(0)
        if segment is not None:
            signal.alarm(patience)
            segment.finish({"outcome": "killed"}, failed=True)
    except Exception as error:
        print(GONE.format(name, error_line(error)), file=people, flush=True)
        os._exit(0)  # the tracker's own clean-up would wait for its service


def error_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def run(name: str, begin: Begin) -> None:
    """The whole process. The tracker's service inherits neither the pipe that it reads nor the one that it writes."""
    messages, people = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull, encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    stop_signals.listen(signal.SIG_IGN)  # the run says when this ends
    with contextlib.suppress(BrokenPipeError):
        follow(name, begin, messages, people)
