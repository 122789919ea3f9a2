"""The loop of `Consumer.run`: handle records, send what comes of them, and commit both together."""
