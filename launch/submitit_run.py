"""A run of gpt1-ds by submitit, on SLURM or on this machine.

python -P submitit_run.py [--cluster local] [--nodes 2] [--ranks 8] pretrain -c pretrain/gpt1_117m data.path=data/books
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass

import submitit


@dataclass
class Run:
    """One rank of the run. submitit calls it in every task, and `checkpoint` before it queues the job again."""

    words: list[str]

    def __call__(self) -> int:
        # overwrite: RANK and the like may be of the shell that submitted
        submitit.helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        from gpt1_ds.cli import main

        return main(self.words)

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        return submitit.helpers.DelayedSubmission(Run(self.words))  # it resumes from its newest checkpoint


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default=None, help="slurm, or local (default: slurm where there is one)")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=8, help="of a node (default: %(default)s)")
    parser.add_argument("--gpus", type=int, default=0, help="of a node (default: none)")
    parser.add_argument("--minutes", type=int, default=24 * 60, help="of one job (default: %(default)s)")
    parser.add_argument("--folder", default="runs/submitit", help="submitit's files and logs (default: %(default)s)")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="what you type after gpt1-ds")
    options = parser.parse_args()
    os.environ["PYTHONSAFEPATH"] = "1"  # of the jobs: no file of the current folder stands in for a library
    executor = submitit.AutoExecutor(folder=options.folder, cluster=options.cluster)
    executor.update_parameters(
        **{"nodes": options.nodes, "tasks_per_node": options.ranks, "gpus_per_node": options.gpus},
        **{"cpus_per_task": 4, "timeout_min": options.minutes, "name": "gpt1-ds"},
    )
    job = executor.submit(Run(options.words))
    print(f"job {job.job_id}: {job.paths.stdout}")
    return int(max(job.results()))


if __name__ == "__main__":
    sys.exit(main())
