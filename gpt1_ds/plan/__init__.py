"""Floor 2: arithmetic about models, layouts and machines. Never imports torch."""
