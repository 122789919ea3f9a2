"""Creating, deleting and describing topics, and the rules for them."""
