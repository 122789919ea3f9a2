"""Diskless topics: records are committed to the remote storage and the metadata's database, on no node's disk."""
