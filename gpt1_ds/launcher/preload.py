"""Imported by the fork server before its first rank: forked ranks find the slow libraries loaded."""

import torch._dynamo  # noqa: F401 - an optimizer's first step asks for it

from gpt1_ds.launcher import libraries

libraries.load()
