"""A first contact with a GPU: all that is asked of one, in one command (contact.sh); pack.py prepares it."""
