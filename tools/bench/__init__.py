"""Rows of the performance table, one module each. `tools/bench.py` runs them."""
