"""Arithmetic about models, layouts and machines. Never imports torch."""
