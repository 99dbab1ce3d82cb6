"""The door to DeepSpeed: whatever touches its insides or Megatron-core's lies in this package.

Read install.py first, which patches an engine: bf16.py, zero.py, pipeline.py and overlap.py hold what it puts in place.
register.py lists every private thing that is relied on, why, and the test that fails without it.
"""
