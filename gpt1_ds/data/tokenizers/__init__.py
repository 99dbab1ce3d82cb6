"""Tokenizers: one file per kind, and the registry that loads a folder of any kind."""
