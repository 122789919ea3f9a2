"""The demo's S3 (moto), a process of its own: says its address on standard output, and ends when standard input does.

Started by the demo as `python -m semel.cli.demo.s3_server`. So it ends with the demo, however that ends.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Final

NEEDS: Final = ("moto", "flask", "flask_cors")
"""What has to be installed for it."""


def main() -> int:
    """Serve until standard input is closed."""
    from moto.server import ThreadedMotoServer

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the demo: nodes write until they have stopped
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # or it logs every request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(json.dumps({"address": f"{host}:{port}"}), flush=True)
    sys.stdin.read()
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
