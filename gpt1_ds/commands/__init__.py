"""The commands of the program, one file each: its options, and what it does."""
