"""Files with a secret that a node reads at its start. No error and no line of the log has what is in them."""

from __future__ import annotations

import logging
import os
import stat
from typing import Final

from semel.runtime.regular_files import open_regular
from semel.runtime.setting import ConfigError

BYTES_MIN: Final = 32
BYTES_MAX: Final = 4_096


def read_key(setting: str, path: str, log: logging.Logger, danger: str) -> bytes:
    """Return the secret in a file, without the end of its line. Raises `ConfigError` where it can't be read.

    Warns where others may read the file: `danger` says what they can do then.
    """
    try:
        descriptor, status = open_regular(path, os.O_RDONLY)
        try:
            content = os.read(descriptor, BYTES_MAX + 3)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"{setting} = {path} can't be read: {error.strerror or error}") from None
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning(
            "%s = %s may be used by others than its owner (mode %s): chmod 600 it. Who can read it %s",
            setting, path, stat.filemode(status.st_mode), danger,
        )  # fmt: skip
    return content.rstrip(b"\r\n")
