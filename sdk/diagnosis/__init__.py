"""What the facts of all nodes mean: the findings of `semel doctor`, and the story that `semel txn why` tells."""
