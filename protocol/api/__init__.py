"""Requests and answers of the control plane as plain data, in front of both listeners."""
