"""Running text: documents, their token ids, shards of a corpus."""
