"""What a model is made of, without torch: its layers in order, which everything else reads."""
