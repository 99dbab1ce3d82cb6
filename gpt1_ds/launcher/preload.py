"""Imported by the fork server before its first rank: forked ranks find the slow libraries loaded."""

import torch._dynamo  # noqa: F401 - an optimizer's first step asks for it

from gpt1_ds.common.versions import source_hash
from gpt1_ds.launcher import libraries

libraries.load()
source_hash()  # each rank compares it with the others'
