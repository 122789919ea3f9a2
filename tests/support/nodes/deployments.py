"""What docker/ starts: the image's defaults, the services of a compose file, and the pods of docker/kubernetes.

Read as Compose and Kubernetes read them, so that a test can start the same nodes in another way, or look at them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"
COMPOSE = DOCKER / "compose-cluster.yaml"
KUBERNETES = DOCKER / "kubernetes"
ZONE_LABEL = "topology.kubernetes.io/zone"
INDEX_LABEL = "apps.kubernetes.io/pod-index"

_INNERMOST = re.compile(r"\$\{(\w+):-([^${}]*)\}")
_REFERENCE = re.compile(r"\$\((\w+)\)")
_LABEL_PATH = re.compile(r"metadata\.labels\['([^']+)'\]")
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600}


@dataclass(frozen=True)
class Image:
    """What docker/Dockerfile says of the image that it makes."""

    environment: Mapping[str, str]
    user: str
    entrypoint: Sequence[str]
    command: Sequence[str]


def image() -> Image:
    """Read the last stage of the Dockerfile."""
    text = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
    said: dict[str, str] = {}
    for line in text[text.rindex("\nFROM ") :].splitlines():
        word, _, rest = line.partition(" ")
        said[word] = f"{said.get(word, '')} {rest}" if word == "ENV" else rest
    environment = dict(pair.split("=", 1) for pair in shlex.split(said["ENV"]))
    return Image(environment, said["USER"], yaml.safe_load(said["ENTRYPOINT"]), yaml.safe_load(said["CMD"]))


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """Put in variables as Compose does: ${NAME:-default}, where the default may have another one in it."""
    while (found := _INNERMOST.search(text)) is not None:
        text = text.replace(found[0], variables.get(found[1]) or found[2])
    assert "$" not in text, "a variable without a default, or in another form"
    return text


def compose(text: str | None = None, **variables: str) -> dict[str, Any]:
    """Return docker/compose-cluster.yaml, or the text of another one, with these variables set."""
    return dict(yaml.safe_load(interpolated(COMPOSE.read_text() if text is None else text, variables)))


def nodes_of(file: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the services that are nodes, by name."""
    return {name: one for name, one in file["services"].items() if "SEMEL_NODE_ID" in one.get("environment", {})}


def environment_of(service: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a service's container."""
    return {**image().environment, **{name: str(value) for name, value in service["environment"].items()}}


def seconds_of(duration: str) -> float:
    """Return a duration of Compose, such as 1m30s."""
    parts = re.findall(r"(\d+)(ms|s|m|h)", duration)
    assert parts, duration
    assert "".join(map("".join, parts)) == duration
    return sum(int(count) * _UNITS_S[unit] for count, unit in parts)


def manifests(folder: Path = KUBERNETES) -> list[dict[str, Any]]:
    """Return what `kubectl kustomize` makes of a folder, but for the hash in a name."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    made = [
        document for name in kustomization["resources"] for document in yaml.safe_load_all((folder / name).read_text())
    ]
    for generator in kustomization["configMapGenerator"]:
        lines = [line for name in generator["envs"] for line in (folder / name).read_text().splitlines()]
        data = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        made.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data})
    return made


def of_kind(documents: Sequence[Mapping[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    yield from (dict(one) for one in documents if one["kind"] == kind)


def stateful_set(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    (found,) = of_kind(documents, "StatefulSet")
    return found


def pod_numbers(documents: Sequence[Mapping[str, Any]]) -> range:
    spec = stateful_set(documents)["spec"]
    first = spec.get("ordinals", {}).get("start", 0)
    return range(first, first + spec["replicas"])


def pod_environment(
    documents: Sequence[Mapping[str, Any]],
    number: int,
    secrets: Mapping[str, str],
    *,
    namespace: str = "logs",
    zone: str = "",
) -> dict[str, str]:
    """Return the variables of a pod's container, as Kubernetes makes them.

    secrets: what the Secret has, by key
    zone: what Kubernetes 1.35 says of the pod's machine; empty on older ones
    """
    found = stateful_set(documents)
    (container,) = found["spec"]["template"]["spec"]["containers"]
    name = f"{found['metadata']['name']}-{number}"
    labels = {**found["spec"]["template"]["metadata"]["labels"], INDEX_LABEL: str(number), ZONE_LABEL: zone}
    fields = {"metadata.name": name, "metadata.namespace": namespace}
    maps = {one["metadata"]["name"]: one["data"] for one in of_kind(documents, "ConfigMap")}
    made = dict(image().environment)
    for source in container["envFrom"]:
        made |= maps[source["configMapRef"]["name"]]
    for variable in container["env"]:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            path = source["fieldRef"]["fieldPath"]
            label = _LABEL_PATH.fullmatch(path)
            value = fields[path] if label is None else labels.get(label[1], "")
        elif "secretKeyRef" in source:
            value = secrets[source["secretKeyRef"]["key"]]
        else:
            value = _REFERENCE.sub(lambda reference: made.get(reference[1], reference[0]), variable["value"])
        made[variable["name"]] = value
    return made
