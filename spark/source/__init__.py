"""Reading: batches, streams, offsets, schemas, lag."""
