"""A GPU that is not there: whole steps on fake CUDA tensors, whose kernels, copies and collectives are counted."""
