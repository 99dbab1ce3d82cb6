"""torchrun's agent of one node, which says in a line which ranks of it were lost; slurm/losses.py reads these lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpt1_ds.common.errors import EXIT_FAILURE
from gpt1_ds.common.files import this_node


def run(arguments: Sequence[str]) -> int:
    """Starts ranks as `torchrun` does with these arguments, and waits for their end. Returns 0, or 1 where one
    failed.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        torchrun.main(list(arguments))
    except ChildFailedError as error:
        for rank, failure in sorted(error.failures.items(), key=lambda item: item[1].timestamp):
            killed = failure.exitcode < 0
            how = f"was killed by {failure.signal_name()}" if killed else f"ended with exit code {failure.exitcode}"
            print(f"gpt1-ds: rank {rank} on {this_node()} {how}", file=sys.stderr, flush=True)
        return EXIT_FAILURE
    return 0
