"""Java programs that are compiled against the jars of a folder, started as processes, killed and started again."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import kafka_jars

COMPILE_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
LINT = "-Xlint:all,-classfile,-path,-processing,-try"
JVM = ("-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""Several run at once on few cores: the quick compiler alone, and one thread to collect garbage."""
LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


def compile_java(jars: Path, sources: Sequence[Path], into: Path, lint: str = LINT) -> Path:
    """Compile Java files against the jars of a folder, and return the folder with their classes."""
    command = [f"{kafka_jars.java()}c", lint, "-Werror", "-cp", f"{jars}/*", "-d", str(into), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return into


class JavaProcess:
    """A class that runs in a JVM of its own. What it writes is appended to a log."""

    def __init__(
        self,
        jars: Path,
        classes: Path,
        main: str,
        *arguments: str,
        log: Path,
        jvm: Sequence[str] = JVM,
    ) -> None:
        self._command = [kafka_jars.java(), *jvm, *LOGGING, "-cp", f"{classes}:{jars}/*", main, *arguments]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL: it has no time to say goodbye to its group, or to end its transaction."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM. Returns the exit code."""
        return self._end(signal.SIGTERM)

    def wait_ended(self, timeout_s: float) -> int:
        """Wait until it ends on its own, and return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    def _end(self, how: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(how)
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
