"""A PostgreSQL of the demo's own for the metadata of its nodes, where its binaries are on this machine."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Final

from semel.cli.demo.interrupted_link import InterruptedSocket
from semel.protocol.errors import FatalError

_UNPRIVILEGED: Final = "nobody"
"""The server refuses to run as root."""
_TIMEOUT_S: Final = 60.0


_SOCKET: Final = ".s.PGSQL.5432"
"""What the server and its clients call a socket in its folder."""
_AS_USER: Final = (
    "import os, pwd, sys; os.setuid(pwd.getpwnam(sys.argv[1]).pw_uid); os.execv(sys.argv[2], sys.argv[2:])"
)


class DemoDatabase:
    """A server on a Unix socket, with one empty database. No port: nobody else on this machine reaches it."""

    def __init__(self, binaries: str) -> None:
        self._binaries = binaries
        self._folder = tempfile.mkdtemp(prefix="semel-demo-database-", dir="/tmp")
        self._user = _UNPRIVILEGED if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self._folder, user=self._user)
        self._links_folder = tempfile.mkdtemp(prefix="semel-demo-links-", dir="/tmp")
        self._links: list[InterruptedSocket] = []

    def link(self) -> tuple[str, InterruptedSocket]:
        """Return the URL of the database by a way of its own, and that way, which can be cut."""
        folder = f"{self._links_folder}/{len(self._links) + 1}"
        os.mkdir(folder, mode=0o700)
        link = InterruptedSocket(f"{folder}/{_SOCKET}", f"{self._folder}/{_SOCKET}")
        self._links.append(link)
        return f"postgresql+psycopg://semel@/postgres?host={folder}", link

    @staticmethod
    def find() -> str | None:
        """Return the directory of PostgreSQL's binaries, None where there is none or its driver is not installed."""
        try:
            import psycopg  # noqa: F401
        except ImportError:
            return None
        found = shutil.which("initdb")
        places = [os.path.dirname(os.path.realpath(found))] if found else []
        places += sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
        return next((place for place in places if os.path.exists(f"{place}/pg_ctl")), None)

    def make(self) -> None:
        """Make the database, and start it. Raises `FatalError`."""
        self._run("initdb", "-D", self._data, "-U", "semel", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def start(self) -> None:
        options = f"-k {self._folder} -c listen_addresses="
        # The log goes to a file: the server would keep the pipe of its starter open.
        self._run("pg_ctl", "-D", self._data, "-w", "-o", options, "-l", f"{self._folder}/log", "start")

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "stop")

    def remove(self) -> None:
        """Stop it, and delete its files."""
        try:
            if os.path.exists(f"{self._data}/postmaster.pid"):
                self.kill()
        finally:
            for link in self._links:
                link.close()
            for folder in (self._folder, self._links_folder):
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def _data(self) -> str:
        return f"{self._folder}/data"

    def _run(self, program: str, *arguments: str) -> None:
        command = [f"{self._binaries}/{program}", *arguments]
        if self._user is not None:
            # `user=` would fork this process, and gRPC's threads can abort the child of a fork.
            command = [sys.executable, "-I", "-S", "-c", _AS_USER, self._user, *command]
        done = subprocess.run(  # noqa: S603
            command,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": self._folder},
            cwd=self._folder,
            check=False,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        if done.returncode:
            raise FatalError(f"{program} failed: {(done.stderr or done.stdout).strip()[-500:]}")
