"""One file an API: what a request does, whichever listener it came by."""
