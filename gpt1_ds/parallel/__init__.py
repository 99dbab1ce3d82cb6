"""Floor 4: ranks, groups and the two DeepSpeed assemblies of one model."""
