"""Fetch: a request on its way, large ones, sessions, and the fetches that wait."""
