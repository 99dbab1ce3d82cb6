"""Checkpoints and tokenizers of others: Hugging Face, OpenAI 2018."""
