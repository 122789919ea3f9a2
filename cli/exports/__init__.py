"""`semel export` and `semel import`: topics as files, and back."""
