"""The console: pages for people, made on the gateway from what any client of the node can ask."""
