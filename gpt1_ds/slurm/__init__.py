"""Jobs. The package meets training through run folders and the program; never imports torch."""
