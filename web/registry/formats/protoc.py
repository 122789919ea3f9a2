"""Compiles .proto texts to descriptors: protoc, of the package grpcio-tools, in a process of its own.

Any client that may register schemas can send a text. In a process of its own a compiler that crashes, or takes long,
takes nothing else with it; and its messages are there to be read.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import google.type
import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from semel.web.registry.formats.base import InvalidSchemaError, Referenced

NAME: Final = "semel-schema.proto"
"""The name of the schema itself, which no reference may have."""
_TIMEOUT_S: Final = 20.0
_MESSAGE_CHARACTERS_MAX: Final = 2_000
_PATH: Final = re.compile(r"[A-Za-z0-9_.+-]+(?:/[A-Za-z0-9_.+-]+)*")
_PATH_CHARACTERS_MAX: Final = 200
_SET: Final = "semel-descriptors.bin"
_INCLUDES: Final = (
    str(Path(grpc_tools.__path__[0]) / "_proto"),
    str(Path(next(iter(google.type.__path__))).parent.parent),
)
"""Where the files are that every schema may import: google/protobuf/ and google/type/."""


def compiled(text: str, references: Sequence[Referenced]) -> list[FileDescriptorProto]:
    """Return the descriptors of a schema and of all that it imports; the schema's own is the last one.

    text: a .proto file, or a FileDescriptorProto in base64, as Confluent's Python client registers it
    Raises `InvalidSchemaError`.
    """
    described = _described(text)
    binary = [] if described is None else [_renamed(described, NAME)]
    texts: dict[str, str] = {} if binary else {NAME: text}
    for reference in references:
        _check_name(reference.name)
        found = _described(reference.text)
        if found is None:
            texts[reference.name] = reference.text
        else:
            binary.insert(0, _renamed(found, reference.name))
    with tempfile.TemporaryDirectory(prefix="semel-proto-") as directory:
        for name, body in texts.items():
            path = Path(directory, "texts", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
        return _compile(Path(directory), binary)


def _compile(directory: Path, binary: Sequence[FileDescriptorProto]) -> list[FileDescriptorProto]:
    output = directory / "out.bin"
    texts = directory / "texts"
    texts.mkdir(exist_ok=True)
    arguments = [f"--proto_path={path}" for path in (texts, *_INCLUDES)]
    if binary:
        known = {file.name for file in binary}
        needed = sorted({name for file in binary for name in file.dependency if name not in known})
        for name in needed:
            _check_name(name)
        standard = [name for name in needed if any(Path(path, name).is_file() for path in _INCLUDES)]
        (directory / _SET).write_bytes(
            FileDescriptorSet(file=[*(_standard(directory, standard) if standard else ()), *binary]).SerializeToString()
        )
        arguments.append(f"--descriptor_set_in={directory / _SET}")
        if not any(file.name == NAME for file in binary):
            arguments = [f"--proto_path={texts}", arguments[-1], *arguments[1:-1]]
    _run([*arguments, f"--descriptor_set_out={output}", "--include_imports", NAME], directory)
    files = list(FileDescriptorSet.FromString(output.read_bytes()).file)
    return sorted(files, key=lambda file: file.name == NAME)


def _standard(directory: Path, names: Sequence[str]) -> list[FileDescriptorProto]:
    output = directory / "standard.bin"
    arguments = [f"--proto_path={path}" for path in _INCLUDES]
    _run([*arguments, f"--descriptor_set_out={output}", "--include_imports", *names], directory)
    return list(FileDescriptorSet.FromString(output.read_bytes()).file)


def _run(arguments: Sequence[str], directory: Path) -> None:
    command = [sys.executable, "-P", "-m", "grpc_tools.protoc", *arguments]
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")}
    try:
        done = subprocess.run(  # noqa: S603 (no shell; names were checked, and texts are in files)
            command, capture_output=True, check=False, timeout=_TIMEOUT_S, env=environment, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise InvalidSchemaError(f"protoc took more than {_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        said = (
            done.stderr.decode("utf-8", "replace")
            .replace(f"{directory}/texts/", "")
            .replace(f"{NAME}:", "line ")
            .strip()
        )
        raise InvalidSchemaError(said[:_MESSAGE_CHARACTERS_MAX] or f"protoc ended with {done.returncode}")


def _described(text: str) -> FileDescriptorProto | None:
    """Return the descriptor in base64; None where the text is none."""
    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    return found if found.name or found.message_type or found.enum_type else None


def _renamed(file: FileDescriptorProto, name: str) -> FileDescriptorProto:
    file.name = name
    return file


def _check_name(name: str) -> None:
    is_path = _PATH.fullmatch(name) and len(name) <= _PATH_CHARACTERS_MAX
    if not is_path or ".." in name.split("/") or "." in name.split("/") or name == NAME:
        raise InvalidSchemaError(f"the reference {name[:100]!r} is no path that an import can have")
