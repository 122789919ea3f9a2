"""docker/compose.yaml: what it asks for exists, its parts know each other by the right names, and its node serves."""

from __future__ import annotations

import re
import urllib.request
from typing import Any

import docker
import yaml
from semel_containers import DATA, IN_CONTAINERS, ROOT, base_image, engine, semel_image, wait_until
from testcontainers.core.container import DockerContainer

from semel.broker.config.sources import load_config, parse_address

__all__ = ["base_image", "engine", "semel_image"]

pytestmark = IN_CONTAINERS

FOLDER = ROOT / "docker"


def parts() -> dict[str, Any]:
    """The services, with every variable as it is where nobody sets it."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (FOLDER / "compose.yaml").read_text())
    assert "$" not in text, "a variable without a default"
    return dict(yaml.safe_load(text)["services"])


def test_the_parts_name_each_other_and_files_that_exist() -> None:
    services = parts()
    node = services["semel"]["environment"]
    config = load_config(environment={name: str(value) for name, value in node.items()}).config
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (FOLDER / source).exists(), source
        assert set(service.get("depends_on", {})) <= set(services)
    [targets] = [
        each["targets"]
        for job in yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
        for each in job["static_configs"]
    ]
    assert targets == [f"semel:{parse_address('metrics.listen', config.metrics_listen).port}"]
    collector = yaml.safe_load((FOLDER / "collector.yaml").read_text())
    receiver = parse_address("otlp", collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"])
    assert node["OTEL_EXPORTER_OTLP_ENDPOINT"] == f"http://collector:{receiver.port}"
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(collector[kind])


def test_the_node_of_the_compose_file_serves_and_has_metrics(engine: docker.DockerClient, semel_image: str) -> None:
    node = parts()["semel"]
    exposed = {port.split("/")[0] for port in engine.images.get(semel_image).attrs["Config"]["ExposedPorts"]}
    assert {port.rpartition(":")[2] for port in node["ports"]} <= exposed
    assert [volume.split(":")[1] for volume in node["volumes"]] == [DATA]
    container = DockerContainer(semel_image).with_exposed_ports(9464)
    with container.with_envs(**{name: str(value) for name, value in node["environment"].items()}):
        wait_until(lambda: container.exec(["semel", "health"]).exit_code == 0, "the node to serve")
        page = f"http://{container.get_container_host_ip()}:{container.get_exposed_port(9464)}/metrics"
        with urllib.request.urlopen(page, timeout=10) as answer:
            assert b"# HELP semel_" in answer.read()
