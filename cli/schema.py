"""`semel schema`: list, show, register, check and delete schemas in a schema registry."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from semel.cli.common import (
    AsJson,
    ExitCode,
    command_app,
    confirm,
    counted,
    examples,
    fail,
    fails_well,
    print_json,
    print_table,
)
from semel.protocol.errors import UsageError

if TYPE_CHECKING:
    from semel.sdk.schemas.api import SchemaRegistry
    from semel.sdk.schemas.model import RegisteredSchema, Schema, SchemaReference

app = command_app("List, show, register, check and delete schemas in a schema registry.")

DEFAULT_REGISTRY: Final = "http://127.0.0.1:8080"
_TIMEOUT_S: Final = 10.0
_TEXT_BYTES_MAX: Final = 1 << 20


class _Type(StrEnum):
    """The language of a schema."""

    AVRO = "avro"
    JSON = "json"
    PROTOBUF = "protobuf"


Registry = Annotated[
    str,
    typer.Option(
        "--registry",
        "-r",
        envvar="SEMEL_SCHEMA_REGISTRY",
        metavar="URL",
        help="The address of a schema registry, such as `semel http` is.",
    ),
]
User = Annotated[
    str,
    typer.Option("--user", envvar="SEMEL_SCHEMA_REGISTRY_USER", metavar="NAME", help="As which user. Default: none."),
]
PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", metavar="FILE", help="A file with the user's password in one line.")
]
CaFile = Annotated[
    Path | None,
    typer.Option("--ca", metavar="FILE", help="The authorities of https, a PEM file. Default: the system's."),
]
Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="The subject, for example orders-value.")]
Version = Annotated[str, typer.Option("--version", metavar="N", help="Which version: a number, or latest.")]
File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="The schema: a file that ends in .avsc, .json or .proto; -: standard input."),
]
Type = Annotated[
    _Type | None, typer.Option("--type", help="The language of the schema. Default: as the file's name ends.")
]
References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
        help="Another schema that this one needs, by the name that it has in it. Can be given several times.",
    ),
]


@app.command("list", epilog=examples("semel schema list", "semel schema list --prefix orders --json"))
@fails_well
def list_subjects(
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only subjects that begin so.")] = "",
    registry: Registry = DEFAULT_REGISTRY,
    user: User = "",
    password_file: PasswordFile = None,
    ca: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """List the subjects, each with its latest version."""
    client = _client(registry, user, password_file, ca)
    latest = [client.version(subject) for subject in client.subjects(prefix)]
    if as_json:
        print_json([_as_json(each) for each in latest])
        return
    print_table(
        ["subject", "latest", "id", "type"],
        [(each.subject, each.version, each.id, each.schema.schema_type) for each in latest],
        empty="no schemas; register one with `semel schema register SUBJECT FILE`",
    )


@app.command(epilog=examples("semel schema get orders-value", "semel schema get orders-value --version 1 --json"))
@fails_well
def get(
    subject: Subject,
    version: Version = "latest",
    registry: Registry = DEFAULT_REGISTRY,
    user: User = "",
    password_file: PasswordFile = None,
    ca: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Print a schema."""
    found = _client(registry, user, password_file, ca).version(subject, version)
    if as_json:
        print_json(_as_json(found))
    else:
        print(found.schema.text)


@app.command(
    epilog=examples(
        "semel schema register orders-value order.avsc",
        "semel schema register shop-value shop.proto --reference common.proto=common:1",
        exit_codes="0 registered; 1 the registry refuses it, for example because it is not compatible",
    )
)
@fails_well
def register(
    subject: Subject,
    file: File,
    schema_type: Type = None,
    reference: References = None,
    normalize: Annotated[
        bool,
        typer.Option(
            "--normalize",
            help="Take schemas that differ in the order of their parts alone for the same, where it means nothing.",
        ),
    ] = False,
    registry: Registry = DEFAULT_REGISTRY,
    user: User = "",
    password_file: PasswordFile = None,
    ca: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Register a schema under a subject. One that is there already keeps its id."""
    client = _client(registry, user, password_file, ca)
    schema = _schema(file, schema_type, reference or [])
    client.register(subject, schema, normalize=normalize)
    found = client.lookup(subject, schema, normalize=normalize)
    if as_json:
        print_json(_as_json(found))
    else:
        print(f"{subject} version {found.version} has the id {found.id}")


@app.command(
    epilog=examples(
        "semel schema check orders-value order.avsc",
        "semel schema check orders-value order.avsc --version 3",
        exit_codes="0 compatible; 1 not compatible",
    )
)
@fails_well
def check(
    subject: Subject,
    file: File,
    schema_type: Type = None,
    reference: References = None,
    version: Annotated[
        str | None,
        typer.Option(
            "--version", metavar="N", help="With this version alone. Default: all that the subject's level asks for."
        ),
    ] = None,
    registry: Registry = DEFAULT_REGISTRY,
    user: User = "",
    password_file: PasswordFile = None,
    ca: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a schema could be registered under a subject. Changes nothing."""
    client = _client(registry, user, password_file, ca)
    messages = client.check(subject, _schema(file, schema_type, reference or []), version)
    if as_json:
        print_json({"compatible": not messages, "messages": messages})
    else:
        print(f"it is {'not ' if messages else ''}compatible with {subject} ({client.compatibility(subject)})")
        for message in messages:
            print(f"  {message}")
    if messages:
        raise typer.Exit(ExitCode.REFUSED)


@app.command(epilog=examples("semel schema delete orders-value --version 3", "semel schema delete orders-value --yes"))
@fails_well
def delete(
    subject: Subject,
    version: Annotated[
        str | None, typer.Option("--version", metavar="N", help="This version alone: a number, or latest.")
    ] = None,
    permanent: Annotated[
        bool,
        typer.Option(
            "--permanent",
            help="For good. It must have been deleted without this before: records may still have its id.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    registry: Registry = DEFAULT_REGISTRY,
    user: User = "",
    password_file: PasswordFile = None,
    ca: CaFile = None,
) -> None:
    """Delete a subject, or one version of it. Records with its id can be read until it is deleted for good."""
    client = _client(registry, user, password_file, ca)
    what = f"{subject} version {version}" if version else f"the subject {subject} with all of its versions"
    if not yes:
        confirm(f"Delete {what}{' for good' if permanent else ''}?")
    if version:
        client.delete_version(subject, version, permanent=permanent)
        print(f"{what} is deleted")
    else:
        print(f"{subject} is deleted: {counted(len(client.delete_subject(subject, permanent=permanent)), 'version')}")


def _client(registry: str, user: str, password_file: Path | None, ca: Path | None) -> SchemaRegistry:
    if bool(user) != (password_file is not None):
        raise UsageError("--user and --password-file go together")
    from semel.sdk.schemas.api import SchemaRegistry
    from semel.sdk.transport.login import password_in

    password = "" if password_file is None else password_in("--password-file", str(password_file))
    return SchemaRegistry(registry, username=user, password=password, ca_location=str(ca or ""), timeout_s=_TIMEOUT_S)


def _schema(file: Path, schema_type: _Type | None, references: list[str]) -> Schema:
    from semel.sdk.schemas.model import Schema

    text = _text(file)
    if schema_type is None:
        schema_type = {".avsc": _Type.AVRO, ".json": _Type.JSON, ".proto": _Type.PROTOBUF}.get(file.suffix)
    if schema_type is None:
        raise UsageError(f"what {file} is written in can't be told by its name: give --type avro, json or protobuf")
    return Schema(text, schema_type.name, tuple(map(_reference, references)))


def _text(file: Path) -> str:
    try:
        if str(file) == "-":
            return sys.stdin.read(_TEXT_BYTES_MAX)
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not text in UTF-8") from None
    except OSError as error:
        raise fail(f"{file} can't be read: {error.strerror}", ExitCode.USAGE) from None


def _reference(text: str) -> SchemaReference:
    from semel.sdk.schemas.model import SchemaReference

    name, equals, place = text.rpartition("=")
    subject, colon, version = place.rpartition(":")
    if not equals or not colon or not name or not subject or not version.isdecimal():
        raise UsageError(f"--reference takes NAME=SUBJECT:VERSION, for example common.proto=common:1, not {text!r}")
    return SchemaReference(name, subject, int(version))


def _as_json(found: RegisteredSchema) -> dict[str, object]:
    return {"subject": found.subject, "version": found.version, "id": found.id, **found.schema.body()}
