"""The layout-free state on disk."""
