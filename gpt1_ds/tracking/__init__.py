"""What is measured, and where it is written."""
