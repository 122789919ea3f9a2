"""Which replicas to move, so that nodes have equally much or nothing. Pure: a model of the cluster in, moves out."""
