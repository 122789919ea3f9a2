"""What a node tells about itself to `semel doctor` and `semel txn why`."""
