"""Text -> token ids: tokenizers and their files, splitting, words."""
