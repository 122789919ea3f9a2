"""The node's settings: all of them, where their values come from, and the page that lists them."""
