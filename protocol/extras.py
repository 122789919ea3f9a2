"""What to install where an optional part of Semel is missing: the command that is right for how Semel was installed.

Most programs never ask, so that what finds the command out is imported when somebody does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_OWN = ("semel", "pyspark_semel")


class MissingExtraError(ImportError):
    """A package is not installed that one of Semel's extras brings. The message says which, and the command."""


def install_command(extra: str, *, installed: Distribution | None = None) -> str:
    """Return the command that adds an extra: by name for a release, by where it is for a checkout or a wheel's file.

    pip records where a distribution came from that is from no index (PEP 610). `installed` is Semel's by default.
    """
    import json
    import shlex
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        origin = json.loads((installed or distribution("semel")).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    return shlex.join(["pip", "install", *_arguments(origin, extra)])


@contextmanager
def imports_of_extra(extra: str, what: str) -> Iterator[None]:
    """Around imports: where another project's package is not installed, say that `what` needs it, and the command."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OWN:
            raise
        raise MissingExtraError(f"{what} needs the Python package {error.name}: {install_command(extra)}") from error


def _arguments(origin: dict[str, Any], extra: str) -> list[str]:
    from pathlib import Path
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    url = origin.get("url", "")
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return [f"semel[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}"]
    path = Path(url2pathname(urlsplit(url).path))
    if not url.startswith("file:") or not path.exists():  # where it was built it is no more
        return [f"semel[{extra}]"]
    editable = ["--editable"] if origin.get("dir_info", {}).get("editable") else []
    return [*editable, f"{path}[{extra}]"]
