"""Which worker of pytest-xdist runs which tests, and in which order.

A file's tests stay together, since they share what its fixtures made; those of a file in APART do not. What fails
fastest comes first. Jobs on SLURM wait for much of their time: one file of them at a time runs beside tests that
compute. A test takes a minute at most, with its fixtures, of a machine on which nothing else runs; those that cannot
are named in LONG. Those that need a GPU have limits of their own (tools/gpu/phases.py).
"""

from __future__ import annotations

import os
from typing import Any

import pytest

ORDER = (
    *("tests/guards/", "tests/slurm/test_jobs", "tests/unit/", "tests/slurm/test_failures", "tests/parallel/"),
    *(
        "tests/slurm/test_hosts",
        "tests/faults/",
        "tests/slurm/",
        "tests/tables/",
        "tests/shipped/",
        "tests/golden/",
        "",
    ),
)
APART: tuple[str, ...] = ()
LONGEST = 60.0  # seconds
TWICE = "two lives of a job, each of which loads torch on two nodes"
LONG = {  # file::function -> why
    "tests/fakecuda/test_assembly.py::test_all_kernels_assemble_as_the_table_says": "72 kernels, nothing cached",
    "tests/fakecuda/test_attention_kernel.py::test_masks_outputs_and_gradients": "kernels in an interpreter",
    "tests/fakecuda/test_fake_collectives.py::test_512_ranks_fit_together": "steps of many ranks, one after the other",
    "tests/fakecuda/test_residual_norm_kernel.py::test_sums_norms_and_gradients": "kernels in an interpreter",
    "tests/faults/test_kills.py::test_killed_at_random_and_bit_identical_in_the_end": "a run that is started six times",
    "tests/parallel/test_gradients.py::test_gradients_equal_the_reference": "one of them waits for a C++ compiler",
    "tests/parallel/test_resume_matrix.py::test_resumes_from_every_layout": "the first one makes all checkpoints",
    "tests/shipped/test_recipe.py::test_the_best_trial_of_a_stage_is_kept": "eight programs, one after the other",
    "tests/shipped/test_scaling_commands.py::test_every_cell_is_run_and_collected": "seven runs, for all tests",
    "tests/shipped/test_study.py::test_models_are_trained_first": "two models are trained, and cells of both",
    "tests/shipped/test_whole_way.py::test_a_stranger_walks_it_in_an_empty_folder": "eleven programs, eight load torch",
    "tests/slurm/test_chain.py::test_a_chain_that_is_submitted_at_once": "five jobs, one after the other",
    "tests/slurm/test_chain.py::test_a_study_trains_its_models_then_its_cells_then_writes_its_page": "four jobs",
    "tests/slurm/test_failures.py::test_array_of_runs": TWICE,
    "tests/slurm/test_failures.py::test_killed_rank_ends_the_job_and_the_next_continues": TWICE,
    "tests/slurm/test_failures.py::test_killed_ranks_begin_again_in_their_job": "four lives of ranks, on two nodes",
    "tests/slurm/test_failures.py::test_lost_node": TWICE,
    "tests/slurm/test_failures.py::test_requeued": TWICE,
    "tests/slurm/test_failures.py::test_script_works_by_itself": "a job of two nodes beside other tests",
    "tests/slurm/test_hosts.py::test_a_host_that_is_cut_off_ends_the_run_and_it_continues_later": TWICE,
    "tests/slurm/test_hosts.py::test_two_hosts_train_as_one": "up to six processes load torch",
    "tests/slurm/test_jobs.py::test_asked_to_hand_over": TWICE,
    "tests/slurm/test_jobs.py::test_jobs_of_a_run_keep_their_words_and_their_turn": TWICE,
    "tests/slurm/test_jobs.py::test_limit_saves_and_a_successor_continues": "no job has a shorter limit than a minute",
    "tests/slurm/test_jobs.py::test_signal_to_all_steps_is_an_orderly_stop_too": TWICE,
    "tests/slurm/test_jobs.py::test_stop_file_ends_without_a_successor": "a job of two nodes beside other tests",
    "tests/slurm/test_scaling_array.py::test_array_with_trouble": "ten lives of jobs",
    "tests/slurm/test_world_faults.py::test_each_fault_passes_and_the_run_is_done": "five jobs, and pauses that double",
    "tests/tables/test_claims.py::test_a_table_is_made_again": "three models are trained, and 22 cells",
}


def in_order(items: list[pytest.Item]) -> None:
    """Sort *items* by their place in ORDER, keeping the order within."""
    items.sort(key=lambda item: next(place for place, start in enumerate(ORDER) if item.nodeid.startswith(start)))


def scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # a machine that has pytest alone runs tests one by one

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return nodeid if file in APART else file

    config.option.loadscopereorder = False
    return ByFile(config, log)


def crowding() -> float:
    """How many processes want each core; the wall clock counts as much slower."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def objection(nodeid: str, seconds: float) -> str:
    """What is said of a test that took too long; nothing of others."""
    seconds /= crowding()
    if seconds <= LONGEST or nodeid.startswith("tests/gpu/") or nodeid.partition("[")[0] in LONG:
        return ""
    return (
        f"{nodeid} took {seconds:.0f} s with its fixtures, {LONGEST:.0f} s are allowed: make it smaller, or name it "
        "and the reason in tests/helpers/schedule.py"
    )
