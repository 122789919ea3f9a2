"""The section "With Spark" of docs/schemas.md, run as it is written, block by block."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from http_gateway import HttpGateway
from spark_query import read_table

import semel
from semel.cli.demo.processes import NodeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "schemas.md"
TOPIC = re.compile(r"^\$ semel topic create (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def section() -> str:
    return PAGE.read_text().split("\n## With Spark\n")[1].split("\n## ")[0]


def test_E2_the_section_runs_as_it_is_written(spark: SparkSession, node: NodeProcess, tmp_path: Path) -> None:
    """Its results are read back, a second run of its query adds nothing, and a damaged record is named."""
    names: dict[str, Any] = {"__name__": "__main__"}  # so that Spark pickles the functions, and not where they are
    with HttpGateway(node.bootstrap) as gateway:
        here = {
            "http://localhost:8080": gateway.url,
            "localhost:9094": node.bootstrap,
            "localhost:9092": node.kafka_address,
            '"checkpoints/': f'"{tmp_path}/',
        }

        def run(code: str) -> None:
            for on_page, instead in here.items():
                code = code.replace(on_page, instead)
            exec(code, names)

        with semel.Admin(node.bootstrap) as admin:
            for topic in TOPIC.findall(section()):
                admin.create_topic(topic)
        write, read, copy = BLOCK.findall(section())
        for block in (write, read, copy, copy):  # the query's second run finds all committed
            run(block)
        decoder = names["registry"].arrow_decoder(topic="large-payments")
        records = read_table(bootstrap=node.bootstrap, subscribe="large-payments")
        rows = decoder.decode(records.column("value")).to_pylist()
        assert sorted((row["id"], row["amount"]) for row in rows) == [(3, Decimal("30.00")), (4, Decimal("40.00"))]
        assert all(row["paid"].tzinfo is not None for row in rows)
        assert json.loads(decoder.reader.text) == json.loads(names["LARGE"])

        with semel.Producer(node.bootstrap) as producer:
            producer.send("payments", b"plain")
        with pytest.raises(
            Exception, match=r"row \d+ \(topic payments, partition 0, offset 5\): it begins with the byte"
        ):
            run(copy)
