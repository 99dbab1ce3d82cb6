"""Floor 0: what every room needs and nothing a room decides."""
