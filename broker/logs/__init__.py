"""The logs of a node together: opened, kept, compacted, flushed, recovered; broker/log is one of them."""
