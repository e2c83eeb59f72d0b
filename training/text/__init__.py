"""Running text: documents, sentences, token ids, and the shards of a corpus."""
