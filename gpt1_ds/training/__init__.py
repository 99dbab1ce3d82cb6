"""The life of a training run: the step loop, and what it works with."""
