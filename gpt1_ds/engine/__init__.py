"""DeepSpeed's engines around the model: process groups, optimizer, master weights."""
