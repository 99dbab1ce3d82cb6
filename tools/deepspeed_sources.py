"""Write down which sources of DeepSpeed and Megatron-core were read: after reading those that another version changes.

    python tools/deepspeed_sources.py

Prints what changed since the last time, and writes gpt1_ds/engine/deepspeed/sources.json.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.launcher import libraries

libraries.load()

from gpt1_ds.engine.deepspeed import register  # noqa: E402 - libraries come first


def main() -> None:
    before = json.loads(register.SOURCES.read_text()) if register.SOURCES.exists() else {}
    found = {}
    for package in register.LIBRARIES.values():
        known = before.get(package, {"version": "none", "functions": {}})
        functions = dict(sorted(register.fingerprints(package).items()))
        changed = sorted(
            name for name in {*functions, *known["functions"]} if functions.get(name) != known["functions"].get(name)
        )
        print(
            f"{package} {known['version']} -> {version(package)}: {len(changed)} of {len(functions)} changed",
            *changed,
            sep="\n  ",
        )
        found[package] = {"version": version(package), "functions": functions}
    register.SOURCES.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
