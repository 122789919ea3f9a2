"""REST with exactly-once: Confluent's API of version 3, idempotent requests and transactions, reading by HTTP."""
