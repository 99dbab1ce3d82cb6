"""How examples become what a model reads and what its loss reads: pure functions, numpy only."""
