"""Whether this machine keeps the promises that training makes: the health of hosts, and the self-proof of GPUs."""
