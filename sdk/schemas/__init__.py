"""Schemas of records: a client of a schema registry, and what writes and reads records in Confluent's wire format."""
