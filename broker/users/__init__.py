"""Users of a node: who they are, and what proves their passwords."""
