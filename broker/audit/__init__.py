"""The audit log: who did, or was refused, what, and from where. And its way to a collector."""
