"""`python -m semel.cli` is `semel`."""

from semel.cli.entry import main

main()
