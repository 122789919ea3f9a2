"""Which replicas to move, so that nodes have equally much or nothing: plans from a model, and carrying them out."""
