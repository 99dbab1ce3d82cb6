"""Pages about finished and running runs, made from their folders alone; never imports torch."""
