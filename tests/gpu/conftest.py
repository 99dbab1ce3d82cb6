"""These tests are for whoever has a GPU: `pytest tests/gpu`. Elsewhere they are not collected."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
