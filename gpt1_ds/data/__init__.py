"""From text to batches. Tokenizers, corpora, token shards, and the order in which windows of them are read."""
