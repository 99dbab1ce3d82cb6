"""The table of a contact's results, its goals first; also of a file that somebody sent.

python tools/gpu/table.py gpu-contact/results.jsonl           print it
python tools/gpu/table.py gpu-contact/results.jsonl --keep    also keep the file in tools/bench/results/
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpt1_ds.common.errors import DataError
from tools.bench import gpu_contacts

KEPT = Path(__file__).parents[1] / "bench" / "results"


def render(path: Path) -> str:
    """Raises DataError for a file that no contact wrote."""
    return gpu_contacts.table(gpu_contacts.read(path))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--keep", action="store_true", help=f"copy it into {KEPT.parent.name}/{KEPT.name}/")
    options = parser.parse_args()
    try:
        results = gpu_contacts.read(options.file)
    except DataError as error:
        print(error, file=sys.stderr)
        return error.code
    print(gpu_contacts.table(results), end="")
    if options.keep:
        kept = KEPT / gpu_contacts.file_name(results)
        shutil.copyfile(options.file, kept)
        print(kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
