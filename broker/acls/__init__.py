"""Permissions: what each user may do, by Kafka's ACLs."""
