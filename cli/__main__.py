"""`python -m semel.cli` is `semel`."""

from semel.cli.main import main

main()
