"""A schema registry with the REST API of Confluent's, whose state is the compacted topic `_schemas`."""
