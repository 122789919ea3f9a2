"""Apache Kafka's own jars, for tests and benches against it: `kafka_jars.py [VERSION]` prints the folder they are in.

Maven takes the broker, the clients and the tools of one release, with all they depend on, from where it is set up to
take things from, checks its checksums, and copies them to build/java/VERSION. The second time nothing is fetched.
In the same way, what builds on them is taken to build/java/NAME-VERSION: Spark's connector to Kafka (spark), Kafka
Streams (streams) and its system tests (streams-tests), Apache Flink with its connector (flink), Apache Beam with its
KafkaIO (beam), Kafka Connect with MirrorMaker 2 (connect), Debezium's connector for PostgreSQL (debezium), and Apache
Iceberg's sink (iceberg).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
POM = ROOT / "tests" / "compat" / "java" / "pom.xml"
CONNECTOR_POM = ROOT / "tests" / "compat" / "java" / "spark-connector.xml"
FLINK_POM = ROOT / "tests" / "compat" / "flink" / "pom.xml"
BEAM_POM = ROOT / "tests" / "compat" / "beam" / "pom.xml"
STREAMS_POM = ROOT / "tests" / "compat" / "streams" / "pom.xml"
STREAMS_TESTS_POM = STREAMS_POM.with_name("system-tests.xml")
CONNECT_POM = ROOT / "tests" / "compat" / "connect" / "pom.xml"
DEBEZIUM_POM = ROOT / "tests" / "compat" / "connect" / "debezium.xml"
ICEBERG_POM = ROOT / "tests" / "compat" / "connect" / "iceberg.xml"
CACHE = ROOT / "build" / "java"

NEWEST = "4.3.0"
"""The newest release that this is tested with. 4.x needs Java 17 for brokers and tools."""
OLDER = "3.9.2"
"""The last line before 4.0: its clients still know protocols that 4.x dropped."""
CONNECTOR = "4.2.0"
"""Spark's connector to Kafka: the newest release on Maven Central when PySpark was at 4.3.0, which runs it."""
FLINK, FLINK_CONNECTOR = "2.2.1", "5.0.0-2.2"
"""Apache Flink, and the newest release of its connector to Kafka, which is for this version."""
BEAM, BEAM_FLINK = "2.70.0", "1.19"
"""Apache Beam with the Flink that it runs on: the newest release whose runner is on Maven Central with all it needs."""
DEBEZIUM = "3.6.1.Final"
"""Debezium's connector for PostgreSQL: built for the Kafka Connect of `NEWEST`."""
ICEBERG, ICEBERG_HADOOP, ICEBERG_SQLITE = "1.12.0", "3.4.3", "3.54.1.0"
"""Apache Iceberg's sink for Connect, with Hadoop's client, which writes its files, and SQLite for its catalog."""
JAVA_VERSION_MIN = 17
MAVEN_TIMEOUT_S = 600


class JavaMissingError(Exception):
    """Java or Maven is not on this machine, or Maven could not fetch; the text says which, and what to do."""


def java() -> str:
    """Return the `java` to run: JAVA_HOME's, else the one on the path. Raises `JavaMissingError`."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(f"{home}/bin/java") if home else shutil.which("java")
    if found is None:
        raise JavaMissingError(f"no Java found; install Java {JAVA_VERSION_MIN} or newer, or set JAVA_HOME")
    words = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr.split()
    version = next((word.strip('"') for word in words if word.startswith('"')), "0")
    if int(version.split(".")[0].split("-")[0]) < JAVA_VERSION_MIN:
        raise JavaMissingError(f"{found} is Java {version}; {JAVA_VERSION_MIN} or newer is needed")
    return found


def jars(version: str = NEWEST) -> Path:
    """Return the folder with the jars of a release, fetched where they are missing. Raises `JavaMissingError`."""
    return fetched_jars(f"Apache Kafka {version}", POM, version, {"kafka.version": version})


def connector_jars(version: str = CONNECTOR) -> list[Path]:
    """Return Spark's connector to Kafka and what it needs beside Spark's own jars. Raises `JavaMissingError`."""
    what = f"Spark's connector to Kafka {version}"
    return sorted(fetched_jars(what, CONNECTOR_POM, f"spark-{version}", {"connector.version": version}).glob("*.jar"))


def streams_jars(version: str = NEWEST) -> Path:
    """Return the folder with the jars of Kafka Streams and what it needs. Raises `JavaMissingError`."""
    return fetched_jars(f"Kafka Streams {version}", STREAMS_POM, f"streams-{version}", {"kafka.version": version})


def streams_test_jars(version: str) -> Path:
    """Return the folder with the programs of Kafka Streams' own system tests. Raises `JavaMissingError`."""
    what = f"the system tests of Kafka Streams {version}"
    return fetched_jars(what, STREAMS_TESTS_POM, f"streams-tests-{version}", {"kafka.version": version})


def flink_jars(version: str = FLINK, connector: str = FLINK_CONNECTOR) -> Path:
    """Return the folder with the jars of Flink and its connector to Kafka. Raises `JavaMissingError`."""
    properties = {"flink.version": version, "connector.version": connector}
    return fetched_jars(f"Apache Flink {version}", FLINK_POM, f"flink-{version}", properties)


def beam_jars(version: str = BEAM) -> Path:
    """Return the folder with the jars of Beam, its KafkaIO and its runner on Flink. Raises `JavaMissingError`."""
    properties = {"beam.version": version, "flink.version": BEAM_FLINK, "kafka.version": OLDER}
    return fetched_jars(f"Apache Beam {version}", BEAM_POM, f"beam-{version}", properties)


def connect_jars(version: str = NEWEST) -> Path:
    """Return the folder with Kafka Connect, MirrorMaker 2 and what they need. Raises `JavaMissingError`."""
    return fetched_jars(f"Kafka Connect {version}", CONNECT_POM, f"connect-{version}", {"kafka.version": version})


def debezium_jars(version: str = DEBEZIUM) -> Path:
    """Return the folder with Debezium's connector for PostgreSQL, as a plugin of Connect. Raises `JavaMissingError`."""
    return fetched_jars(f"Debezium {version}", DEBEZIUM_POM, f"debezium-{version}", {"debezium.version": version})


def iceberg_jars(version: str = ICEBERG) -> Path:
    """Return the folder with Apache Iceberg's sink, as a plugin of Connect. Raises `JavaMissingError`."""
    properties = {"iceberg.version": version, "hadoop.version": ICEBERG_HADOOP, "sqlite.version": ICEBERG_SQLITE}
    return fetched_jars(f"Apache Iceberg's sink {version}", ICEBERG_POM, f"iceberg-{version}", properties)


def fetched_jars(what: str, pom: Path, name: str, properties: Mapping[str, str]) -> Path:
    """Return the folder `name` with what a POM names, fetched where it is missing. Raises `JavaMissingError`."""
    folder = CACHE / name
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise JavaMissingError(f"no Maven found to fetch {what} with; install it (Debian: apt install maven)")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f"{name}-") as taken:
        command = [maven, "--quiet", "--batch-mode", "--strict-checksums", "--file", str(pom)]
        command += [f"-D{key}={value}" for key, value in properties.items()]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={taken}/jars"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False)
        if done.returncode:
            raise JavaMissingError(f"Maven could not fetch {what}:\n{done.stdout[-2000:]}")
        if not folder.is_dir():  # another process may have been faster
            Path(taken, "jars").rename(folder)
    return folder


if __name__ == "__main__":
    print(jars(*sys.argv[1:2]))
