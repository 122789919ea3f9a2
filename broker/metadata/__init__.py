"""Cluster metadata: an ordered change log in a SQL database, and the image that it builds."""
