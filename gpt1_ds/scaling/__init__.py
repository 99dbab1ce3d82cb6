"""Scaling studies: from a question to a prediction with an error bar."""
