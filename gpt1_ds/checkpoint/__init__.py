"""Floor 5: the layout-free state on disk."""
