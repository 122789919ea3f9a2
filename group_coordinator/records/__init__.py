"""Records of `__consumer_offsets`: their bytes, and what they say as values."""
