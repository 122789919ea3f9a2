"""How nodes reach each other: by the Kafka protocol, after each has proven that it has the secret of the cluster."""
