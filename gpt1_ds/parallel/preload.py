"""Imported by the fork server before its first rank: forked ranks find the slow libraries loaded."""

from gpt1_ds.parallel import libraries

libraries.load()
