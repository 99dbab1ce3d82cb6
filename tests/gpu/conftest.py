"""These tests are for whoever has a GPU: `pytest tests/gpu`. Elsewhere they are not collected."""

import torch

from gpt1_ds.model import proof

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
if torch.cuda.is_available():  # what they test is on in every process: the tests' cache says that it is proven
    proof.keep(proof.toolchain(torch.device("cuda", 0)), torch.cuda.device_count())
