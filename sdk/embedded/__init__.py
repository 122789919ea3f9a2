"""A durable node in the caller's process: `semel.open`; and the host of a node, which the test kit uses as well."""
