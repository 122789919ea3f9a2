"""Completion in shells: commands, options, choices, and names that a node has."""
