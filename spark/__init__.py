"""Semel as a source and a sink of PySpark: `format("semel")`, with the options of Spark's own Kafka connector."""
