"""Starts Spark's JVM from a process in which gRPC is at work."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest


def _start(*args: Any, preexec_fn: object, **kwargs: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(*args, process_group=0, **kwargs)


def start_without_fork(patch: pytest.MonkeyPatch) -> None:
    """Let PySpark start its JVM with vfork.

    PySpark passes a `preexec_fn`, so Python forks and runs gRPC's fork handlers. These start gRPC's threads again in
    the child, while Python closes the child's files: from grpcio 1.80 on, about one child in 50 aborts before it runs
    Java, where clients are at work (https://github.com/grpc/grpc/issues/43055). All that PySpark's function does is to
    keep Ctrl-C from the JVM; a process group of its own does that too.
    """
    patch.setattr("pyspark.java_gateway.Popen", _start)
