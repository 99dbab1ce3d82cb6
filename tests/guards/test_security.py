"""Each promise of SECURITY.md has tests, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = {  # beginning of a promise -> the tests that hold it
    "Nothing that it reads is unpickled or run": (
        "guards/test_code.py::test_nothing_is_unpickled_and_no_shell_is_used",
        "faults/test_hostile.py::test_a_small_share_of_the_fuzz",
        "unit/config/test_carried.py::test_a_strangers_file_brings_no_commands_and_no_places",
    ),
    "Python files of the current folder are not run": (
        "faults/test_hostile_folder.py::test_no_process_of_a_command_runs_them",
        "faults/test_hostile_folder.py::test_no_launcher_runs_them",
        "faults/test_hostile_folder.py::test_every_python_is_started_with_safe_path",
    ),
    "Files that do not match their checksums are refused": (
        "faults/test_corruption.py::test_damage_is_named_and_passed_by",
        "faults/test_different_ranks.py::test_other_files_at_the_same_path_are_refused",
        "parallel/test_shared_disk.py::test_hosts_read_for_one_another_on_a_shared_disk_alone",
    ),
    "Secrets of the environment are not logged and not saved": (
        "faults/test_secrets.py::test_no_secret_in_any_file_and_nothing_for_others",
        "unit/config/test_secrets.py::test_secrets_of_lines_and_options_are_refused",
        "unit/config/test_secrets.py::test_secrets_of_variables_are_refused",
        "unit/config/test_secrets.py::test_passwords_in_addresses_are_refused_anywhere",
    ),
    "Values reach SLURM as single arguments": (
        "unit/slurm/test_request.py::test_no_value_runs_in_the_script",
        "unit/config/test_secrets.py::test_beginnings_of_options_that_are_decided_here_are_refused",
    ),
    "A server that accepts and never answers ends in one line": (
        "faults/test_silent_servers.py::test_each_question_ends",
        "faults/test_silent_servers.py::test_a_commit_to_a_hub_that_stops_answering_ends",
    ),
    "Ports of local ranks": ("parallel/test_launch.py::test_local_ranks_are_not_reached_from_other_hosts",),
}


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_promise_has_tests_that_exist() -> None:
    promises = re.findall(r"^\* (.*)", (ROOT / "SECURITY.md").read_text(), flags=re.MULTILINE)
    assert len(promises) == len(TESTS)
    for promise, (beginning, tests) in zip(promises, TESTS.items(), strict=True):
        assert promise.startswith(beginning), promise
        for file, _, name in (test.partition("::") for test in tests):
            assert name in functions_of(ROOT / "tests" / file), f"{file} has no {name}"
