"""Floor 3: GPT-1, built from Megatron-core's tensor-parallel layers."""
