"""`python -m gpt1_ds` is `gpt1-ds`."""

import sys

from gpt1_ds.cli import main

if __name__ == "__main__":
    sys.exit(main())
