"""What a model is fine-tuned on, from official files to batches, metrics and submissions."""
