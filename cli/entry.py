"""Where the `semel` command begins: settles what signals do and what closed streams are, and says what to install where
only the clients are.
"""

from __future__ import annotations

import sys

from semel.cli.signals import end_at_once_on_signals
from semel.cli.standard_streams import open_closed_streams


def main() -> None:
    """Run the command line, or say what to install for it."""
    end_at_once_on_signals()
    open_closed_streams()
    from semel.protocol.extras import MissingExtraError, imports_of_extra  # after that: a Ctrl-C may fall into imports

    try:
        with imports_of_extra("node", "the command line"):
            from semel.cli.main import main as run

            run()
    except MissingExtraError as error:
        from semel.cli.client_install import answer

        sys.exit(answer(sys.argv[1:], error))
