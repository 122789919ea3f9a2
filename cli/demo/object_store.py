"""What has the bytes of the demo's diskless nodes: an S3 of its own, or a directory where moto is not installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

from semel.cli.demo.s3_server import NEEDS
from semel.protocol.errors import FatalError, UsageError
from semel.protocol.extras import install_command

_BUCKET: Final = "semel-demo"
_TIMEOUT_S: Final = 20.0


class DemoStore:
    """An S3 in a process of its own, which keeps all in memory and ends with the demo; or a directory."""

    ENVIRONMENT: Final = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo"}
    """What nodes need to be let in: moto takes any key."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made where there is no S3."""
        self._process: subprocess.Popen[str] | None = None
        self._log_path = folder.with_suffix(".log")
        self.url = f"file://{folder.resolve()}"
        self.is_s3 = self.has_s3()

    @staticmethod
    def require_client() -> None:
        """Raise `UsageError` where nodes could ask no store at all."""
        if importlib.util.find_spec("obstore") is None:
            raise UsageError(f"diskless topics need the Python package obstore: {install_command('remote')}")

    @staticmethod
    def has_s3() -> bool:
        """Say whether what plays S3 is installed."""
        return all(importlib.util.find_spec(name) is not None for name in NEEDS)

    def start(self) -> None:
        """Start the S3 and make its bucket, from then on `url` names it. Raises `FatalError`."""
        if not self.is_s3:
            return
        command = [sys.executable, "-P", "-m", "semel.cli.demo.s3_server"]
        with self._log_path.open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = "\n".join(self._log_path.read_text(errors="replace").splitlines()[-8:])
            raise FatalError(f"the S3 of the demo did not start; the end of its log:\n{tail}")
        address = json.loads(line)["address"]
        with closing(HTTPConnection(address, timeout=_TIMEOUT_S)) as connection:
            connection.request("PUT", f"/{_BUCKET}")
            if (status := connection.getresponse().status) != HTTPStatus.OK:
                raise FatalError(f"the S3 of the demo made no bucket: it answered {status}")
        self.url = f"s3://{_BUCKET}/semel?region=us-east-1&endpoint=http://{address}"

    def stop(self) -> None:
        """End it. What it held is gone; a directory stays."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process = None
