"""Floor 3: what is measured and where it is written."""
