"""What a request does, whichever listener it came by: a file for each API, or a folder of several."""
