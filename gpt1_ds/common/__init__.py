"""What every package needs and none decides."""
