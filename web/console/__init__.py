"""The console: pages for people, made on the door from what any client of the node can ask."""
