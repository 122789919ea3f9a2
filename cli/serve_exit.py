"""The exit codes of `semel serve`."""

from __future__ import annotations

from enum import IntEnum


class ServeExit(IntEnum):
    """What the exit code of `semel serve` says. docs/configuration.md lists them."""

    STOPPED = 0
    """A signal stopped it, and everything is on the disk."""
    FAILED = 1
    """Something that should not happen; the log has the traceback."""
    CONFIGURATION = 2
    """A flag, variable or line of the configuration file is wrong."""
    DATA_FOLDER = 3
    """The data folder is in use, belongs to another node, or can't be read."""
    METADATA = 4
    """The metadata's database can't be used or went back, another node is the controller, or this one was away for too
    many changes: it reads all at its next start."""
    ADDRESS = 5
    """A port is in use, or a host is not this machine's."""
    STORAGE = 6
    """The node ran, and its disk failed: it stopped because of that, or it failed while the node stopped. What was
    acknowledged is kept."""
    REMOVED = 7
    """An operator removed the node from the cluster. Started again without --no-join, it joins as a new one."""
