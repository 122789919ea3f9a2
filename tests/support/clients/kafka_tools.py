"""Runs Apache Kafka's command-line tools, and Java programs against its client library."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import kafka_jars

TIMEOUT_S = 120
JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""These are short-lived: the quick compiler alone, and one thread to collect garbage."""
LOGGING = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showThreadName=false")

TOOLS = {
    "acls": ("org.apache.kafka.tools.AclCommand", "kafka.admin.AclCommand"),
    "broker-api-versions": ("org.apache.kafka.tools.BrokerApiVersionsCommand", "kafka.admin.BrokerApiVersionsCommand"),
    "cluster": ("org.apache.kafka.tools.ClusterTool",),
    "configs": ("org.apache.kafka.tools.ConfigCommand", "kafka.admin.ConfigCommand"),
    "connect-distributed": ("org.apache.kafka.connect.cli.ConnectDistributed",),
    "connect-mirror-maker": ("org.apache.kafka.connect.mirror.MirrorMaker",),
    "connect-standalone": ("org.apache.kafka.connect.cli.ConnectStandalone",),
    "console-consumer": ("org.apache.kafka.tools.consumer.ConsoleConsumer",),
    "console-producer": ("org.apache.kafka.tools.ConsoleProducer", "kafka.tools.ConsoleProducer"),
    "consumer-groups": ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",),
    "consumer-perf-test": ("org.apache.kafka.tools.ConsumerPerformance",),
    "delegation-tokens": ("org.apache.kafka.tools.DelegationTokenCommand", "kafka.admin.DelegationTokenCommand"),
    "delete-records": ("org.apache.kafka.tools.DeleteRecordsCommand",),
    "dump-log": ("org.apache.kafka.tools.DumpLogSegments", "kafka.tools.DumpLogSegments"),
    "features": ("org.apache.kafka.tools.FeatureCommand", "kafka.admin.FeatureCommand"),
    "get-offsets": ("org.apache.kafka.tools.GetOffsetShell",),
    "groups": ("org.apache.kafka.tools.GroupsCommand",),
    "leader-election": ("org.apache.kafka.tools.LeaderElectionCommand", "kafka.admin.LeaderElectionCommand"),
    "log-dirs": ("org.apache.kafka.tools.LogDirsCommand",),
    "metadata-quorum": ("org.apache.kafka.tools.MetadataQuorumCommand",),
    "producer-perf-test": ("org.apache.kafka.tools.ProducerPerformance",),
    "reassign-partitions": (
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        "kafka.admin.ReassignPartitionsCommand",
    ),
    "topics": ("org.apache.kafka.tools.TopicCommand",),
    "transactions": ("org.apache.kafka.tools.TransactionsCommand",),
    "verifiable-producer": ("org.apache.kafka.tools.VerifiableProducer",),
}
"""What the scripts of a Kafka release run, by the script's name without `kafka-`: where it is now, where it was."""
HOMES = ("kafka_2.13-*.jar", "kafka-tools-[0-9]*.jar", "connect-runtime-*.jar", "connect-mirror-[0-9]*.jar")
"""The jars that have them."""


@dataclass(frozen=True)
class Done:
    """What a program said, and its exit code."""

    command: str
    code: int
    output: str
    errors: str

    def succeeded(self) -> Done:
        """Return itself; fail the test where the program failed."""
        assert self.code == 0, f"{self.command} ended with {self.code}:\n{self.output[-4000:]}\n{self.errors[-4000:]}"
        return self

    def complaints(self) -> list[str]:
        """Return the lines with which it warns: what the client library logs, and what it wrote to standard error."""
        return [line for line in self.errors.splitlines() if line.strip()]

    def lines(self) -> list[str]:
        return [line for line in self.output.splitlines() if line.strip()]


class KafkaTools:
    """The tools of one release."""

    def __init__(self, version: str = kafka_jars.NEWEST, *, jars: Callable[[str], Path] = kafka_jars.jars) -> None:
        """`jars` fetches a release: the broker's with its tools, or `kafka_jars.connect_jars`.

        Raises `kafka_jars.JavaMissingError`.
        """
        self.version = version
        self.java = kafka_jars.java()
        self.folder = jars(version)
        self._classes = {
            name for home in HOMES for jar in self.folder.glob(home) for name in zipfile.ZipFile(jar).namelist()
        }

    def has(self, tool: str) -> bool:
        return any(self._is_there(name) for name in TOOLS[tool])

    def command(self, main: str, *arguments: str, classes: Path | None = None, jvm: Sequence[str] = JVM) -> list[str]:
        """Return the command line for a tool, or for a class of `classes`."""
        if main in TOOLS:
            main = next(name for name in TOOLS[main] if self._is_there(name))
        path = f"{self.folder}/*" if classes is None else f"{classes}:{self.folder}/*"
        return [self.java, *jvm, *LOGGING, "-cp", path, main, *arguments]

    def run(
        self,
        main: str,
        *arguments: str,
        text: str | None = None,
        classes: Path | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Done:
        """Run a tool, or a class of `classes`, to its end; `text` is its standard input."""
        done = subprocess.run(
            self.command(main, *arguments, classes=classes),
            input=text or "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Done(f"{main} {' '.join(arguments)}", done.returncode, done.stdout, done.stderr)

    @contextmanager
    def running(self, main: str, *arguments: str, classes: Path | None = None) -> Iterator[subprocess.Popen[str]]:
        """Run a tool, or a class of `classes`, meanwhile; it is killed at the end where it still runs."""
        with subprocess.Popen(
            self.command(main, *arguments, classes=classes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def compile(self, sources: Path, into: Path) -> Path:
        """Compile the Java files of a folder against the client library, and return the folder with their classes."""
        files = [str(path) for path in sorted(sources.glob("*.java"))]
        lint = "-Xlint:all,-classfile,-path,-processing,-try"
        command = [f"{self.java}c", lint, "-Werror", "-cp", f"{self.folder}/*", "-d", str(into), *files]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return into

    def _is_there(self, name: str) -> bool:
        return f"{name.replace('.', '/')}.class" in self._classes
