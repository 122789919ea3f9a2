"""The semel command."""
