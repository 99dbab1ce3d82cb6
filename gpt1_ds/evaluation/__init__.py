"""What a checkpoint is worth and what it says: held-out loss, task scores, zero-shot, predictions, text."""
