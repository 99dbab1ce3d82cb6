"""Whether a run makes progress, and where its time goes."""
