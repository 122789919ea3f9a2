"""The node's settings: how one is declared, all of them, where their values come from, and the page that lists them."""
