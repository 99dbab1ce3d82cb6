"""The models, built from Megatron-core's tensor-parallel layers."""
