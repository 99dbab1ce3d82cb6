"""`python -P -m gpt1_ds` is `gpt1-ds`."""

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109 - as Python writes it
        del sys.path[0]  # a file there could stand in for any library; with -P it was never there
    from gpt1_ds.cli import main

    sys.exit(main())
