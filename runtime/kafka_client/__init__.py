"""A client of the Kafka protocol without anything of who uses it: programs with the SDK, and nodes among themselves."""
