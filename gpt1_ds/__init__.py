"""GPT-1 from raw text to a fine-tuned model: Megatron-core layers inside DeepSpeed."""

__version__ = "0.1.0"
