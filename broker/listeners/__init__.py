"""Translations at the edge: gRPC and the Kafka protocol."""
