"""Local ranks and what they need of the machine; never torch before it must."""
