"""Text -> token ids: tokenizers and their files, special tokens, splitting, windows, words."""
