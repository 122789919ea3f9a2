"""To which node something goes: the markers of a decision, and the question whether a partition is in a transaction."""
