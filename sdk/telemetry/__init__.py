"""Traces and metrics of the clients."""
