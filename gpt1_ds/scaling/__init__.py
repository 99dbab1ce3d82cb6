"""Scaling studies: cells, their run folders, fits and predictions. Never torch."""
