"""The door to DeepSpeed: whatever touches its insides or Megatron-core's lies in this package."""
