"""A side wing: jobs. It meets training through run folders and the program; never imports torch."""
