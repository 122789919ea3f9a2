"""What is wrong with a compose file, or with manifests of Kubernetes, that start a cluster: faults in words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from deployments import (
    environment_of,
    image,
    nodes_of,
    of_kind,
    pod_environment,
    pod_numbers,
    seconds_of,
    stateful_set,
)
from typer.testing import CliRunner

from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import load_config, parse_address
from semel.cli.main import app
from semel.runtime.setting import ConfigError

DISK_S = 10
"""For what is written to the disk as a node stops, beside what shutdown.grace.ms bounds."""
URL = "postgresql+psycopg://semel:password@db.example.com/semel"
LISTENERS = ("kafka", "grpc", "peer")
_TIMEOUT = re.compile(r"\btimeout (\d+) ")
_SEMEL = re.compile(r"\bsemel ((?:[a-z-]+ ?)+)")


def wrong_command(words: Sequence[str]) -> str:
    """Say what of a command line `semel` does not have; empty: nothing."""
    said = CliRunner().invoke(app, [*words, "--help"])
    return "" if said.exit_code == 0 else said.output.strip().splitlines()[-1]


def commands_in(command: Sequence[str]) -> Iterator[list[str]]:
    """Yield what of a container's command are calls of `semel`."""
    if command[0] == "semel":
        yield list(command[1:])
    elif command[0] == "sh":
        yield from (found[1].split() for found in _SEMEL.finditer(command[-1]))


def stop_s(config: NodeConfig) -> float:
    """How long a node may take to end after SIGTERM: it hands over, finishes requests, and writes to the disk."""
    return 2 * config.shutdown_grace_ms / 1000 + DISK_S


def _loaded(who: str, environment: Mapping[str, str]) -> tuple[NodeConfig, list[str]]:
    try:
        return load_config(environment=environment).config, []
    except ConfigError as error:
        return NodeConfig(), [f"{who}: {error.message}"]


def _faults_of_replication(who: str, config: NodeConfig, nodes: int) -> Iterator[str]:
    if config.default_replication_factor != nodes:
        yield f"{who}: default.replication.factor = {config.default_replication_factor}, and there are {nodes} nodes"
    if not 1 < config.min_insync_replicas < config.default_replication_factor:
        yield f"{who}: min.insync.replicas = {config.min_insync_replicas} protects nothing, or lets no node be away"


def _faults_of_addresses(who: str, config: NodeConfig, hosts: Mapping[str, str]) -> Iterator[str]:
    """hosts: what each listener must be advertised as."""
    for listener, host in hosts.items():
        listen = parse_address(f"{listener}.listen", getattr(config, f"{listener}_listen") or "none:0")
        told = parse_address(f"{listener}.advertised", getattr(config, f"{listener}_advertised") or "none:0")
        if listen.host != "0.0.0.0":
            yield f"{who}: {listener}.listen = {listen} is not reached from outside of the container"
        if told.port != listen.port:
            yield f"{who}: {listener}.advertised has port {told.port}, and {listen.port} is listened on"
        if told.host != host:
            yield f"{who}: {listener}.advertised names {told.host}, not {host}"


def _faults_of_probe(who: str, what: str, command: Sequence[str]) -> Iterator[str]:
    calls = list(commands_in(command))
    if not calls:
        yield f"{who}: {what} calls no command of semel"
    for words in calls:
        if wrong := wrong_command(words):
            yield f"{who}: {what} calls `semel {' '.join(words)}`: {wrong}"


# --- Compose ----------------------------------------------------------------------------------------------------------


def faults_of_compose(file: Mapping[str, Any], *, hosts: Mapping[str, str] | None = None) -> Iterator[str]:
    """hosts: what clients are told for each node, where it is not localhost."""
    services, nodes = file["services"], nodes_of(file)
    if len(nodes) != 3:
        yield f"there are {len(nodes)} nodes"
    for what in ("SEMEL_NODE_ID", "SEMEL_KAFKA_ADVERTISED", "SEMEL_GRPC_ADVERTISED", "SEMEL_PEER_ADVERTISED"):
        if len({environment_of(one)[what] for one in nodes.values()}) != len(nodes):
            yield f"two nodes have one {what}"
    owners: dict[str, str] = {}
    for name, service in services.items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source not in file["volumes"]:
                yield f"{name}: no volume {source}"
            if source != "secrets" and owners.setdefault(source, name) != name:
                yield f"{name}: the volume {source} is of {owners[source]}"
        for needed, how in service.get("depends_on", {}).items():
            if needed not in services:
                yield f"{name}: no service {needed}"
            elif how["condition"] == "service_healthy" and "test" not in services[needed].get("healthcheck", {}):
                yield f"{name}: {needed} has no health check"
            elif how["condition"] == "service_completed_successfully" and services[needed]["restart"] != "no":
                yield f"{name}: {needed} never ends"
        if "user" in service:
            yield f"{name}: it does not run as the image's user"
    for name, service in nodes.items():
        host = "localhost" if hosts is None else hosts[name]
        yield from _faults_of_compose_node(file, name, service, host)
    yield from _faults_of_database(file, next(iter(nodes.values())))


def _faults_of_compose_node(file: Mapping[str, Any], name: str, service: Mapping[str, Any], host: str) -> Iterator[str]:
    environment = environment_of(service)
    config, wrong = _loaded(name, environment)
    yield from wrong
    yield from _faults_of_replication(name, config, len(nodes_of(file)))
    yield from _faults_of_addresses(name, config, {"kafka": host, "grpc": host, "peer": name})
    if service["hostname"] != name:
        yield f"{name}: its host name is {service['hostname']}"
    clients = {
        parse_address("kafka.listen", config.kafka_listen).port,
        parse_address("grpc.listen", config.grpc_listen).port,
    }
    published = [port.split(":")[-2:] for port in service["ports"]]
    if {int(port) for pair in published for port in pair} != clients or len(published) != len(clients):
        yield f"{name}: it publishes {published}, and clients are told {sorted(clients)}"
    if environment["SEMEL_BOOTSTRAP"] != f"localhost:{parse_address('grpc.listen', config.grpc_listen).port}":
        yield f"{name}: its health check asks {environment['SEMEL_BOOTSTRAP']}"
    yield from _faults_of_probe(name, "the health check", service["healthcheck"]["test"][1:])
    if "--only-node" not in service["healthcheck"]["test"]:
        yield f"{name}: the health check fails for what no restart fixes"
    if seconds_of(service["stop_grace_period"]) < stop_s(config):
        yield f"{name}: it is killed after {service['stop_grace_period']}, and may need {stop_s(config):g} s"
    if service["restart"] in ("no", None):
        yield f"{name}: it is not started again"
    if set(service["depends_on"]) != {"secrets", "postgres"}:
        yield f"{name}: it waits for {sorted(service['depends_on'])}"
    mounted = {volume.split(":")[1]: volume for volume in service["volumes"]}
    for path in (config.data_dir, config.cluster_secret_file):
        if not any(PurePosixPath(path).is_relative_to(folder) for folder in mounted):
            yield f"{name}: {path} is on no volume"
    secrets = mounted.get(str(PurePosixPath(config.cluster_secret_file).parent), "")
    if not secrets.startswith("secrets:") or not secrets.endswith(":ro"):
        yield f"{name}: the secrets are not mounted to be read alone"


def _faults_of_database(file: Mapping[str, Any], node: Mapping[str, Any]) -> Iterator[str]:
    database = file["services"]["postgres"]
    url = re.fullmatch(
        r"postgresql\+psycopg://(\w+)@(\w+)/(\w+)\?passfile=(\S+)", environment_of(node)["SEMEL_METADATA_URL"]
    )
    if url is None:
        yield "the database's URL has a password in it, or none"
        return
    user, host, name, passfile = url.groups()
    given = database["environment"]
    if (user, host, name) != (given["POSTGRES_USER"], "postgres", given["POSTGRES_DB"]):
        yield f"the nodes look for {user}@{host}/{name}"
    made = " ".join(file["services"]["secrets"]["command"])
    for path in (passfile, given["POSTGRES_PASSWORD_FILE"], environment_of(node)["SEMEL_CLUSTER_SECRET_FILE"]):
        if PurePosixPath(path).name not in made:
            yield f"nobody makes {path}"
    if f":{user}:" not in made:
        yield f"the password is of another user than {user}"
    if not re.fullmatch(r"postgres:\d+\.\d+-\w+", database["image"]):
        yield f"{database['image']} is not one version"
    check = " ".join(database.get("healthcheck", {}).get("test", ()))
    if not re.search(rf"pg_isready --host 127\.0\.0\.1 --username {user} --dbname {name}$", check):
        yield f"the database is healthy by `{check}`"


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def faults_of_manifests(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    found = stateful_set(documents)
    spec = found["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    numbers = pod_numbers(documents)
    for number in numbers:
        who = f"{found['metadata']['name']}-{number}"
        environment = pod_environment(documents, number, {"metadata-url": URL}, namespace="logs", zone="a")
        config, wrong = _loaded(who, environment)
        yield from wrong
        if wrong:
            return
        if config.node_id != number:
            yield f"{who}: node.id = {config.node_id}"
        if config.metadata_url != URL or config.broker_rack != "a":
            yield f"{who}: its metadata.url or broker.rack are not what Kubernetes gives it"
        yield from _faults_of_replication(who, config, len(numbers))
        own = f"{who}.{found['spec']['serviceName']}.logs.svc"
        yield from _faults_of_addresses(who, config, dict.fromkeys(LISTENERS, own))
    yield from _faults_of_ports(documents, config)
    yield from _faults_of_probes(container, config, spec["terminationGracePeriodSeconds"])
    yield from _faults_of_user(spec)
    yield from _faults_of_mounts(found, config)
    if container["args"] != image().command or "command" in container:
        yield f"the container runs {container.get('command')} {container['args']}"
    for kind in ("Secret", "Namespace"):
        if any(of_kind(documents, kind)):
            yield f"a {kind} is among the manifests"


def _faults_of_ports(documents: Sequence[Mapping[str, Any]], config: NodeConfig) -> Iterator[str]:
    found = stateful_set(documents)
    labels = found["spec"]["template"]["metadata"]["labels"]
    (container,) = found["spec"]["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    wanted = {
        name: parse_address(name, getattr(config, f"{name}_listen")).port
        for name in ("kafka", "grpc", "peer", "metrics")
    }
    if ports != wanted:
        yield f"the container has the ports {ports}, and listens on {wanted}"
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(documents, "Service")}
    for name, service in services.items():
        for port in service["ports"]:
            if ports.get(port["targetPort"]) != port["port"] or port["name"] != port["targetPort"]:
                yield f"service {name}: port {port['name']} {port['port']} leads to {port['targetPort']}"
        if not service["selector"].items() <= labels.items():
            yield f"service {name} selects no pod"
    nodes = services.get(found["spec"]["serviceName"], {})
    if nodes.get("clusterIP") != "None" or not nodes.get("publishNotReadyAddresses"):
        yield "pods have no name of their own, or only when they are ready"
    bootstrap = {port["name"] for name, one in services.items() if one is not nodes for port in one["ports"]}
    if bootstrap != {"kafka", "grpc"}:
        yield f"clients begin at {sorted(bootstrap)}"
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        (one,) = of_kind(documents, kind)
        selector = one["spec"].get("selector") or one["spec"]["podSelector"]
        if not selector["matchLabels"].items() <= labels.items():
            yield f"the {kind} selects no pod"
    if next(of_kind(documents, "PodDisruptionBudget"))["spec"].get("maxUnavailable") != 1:
        yield "more than one node may be away for a drain"
    yield from _faults_of_policy(next(of_kind(documents, "NetworkPolicy"))["spec"], ports)
    spec = found["spec"]["template"]["spec"]
    spread = [
        *spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"],
        *spec["topologySpreadConstraints"],
    ]
    if any(not one["labelSelector"]["matchLabels"].items() <= labels.items() for one in spread):
        yield "the pods are not kept apart from each other"
    if found["spec"]["selector"]["matchLabels"] != labels:
        yield "the StatefulSet does not select its pods"


def _faults_of_policy(policy: Mapping[str, Any], ports: Mapping[str, int]) -> Iterator[str]:
    allowed = {one["port"]: rule.get("from") for rule in policy["ingress"] for one in rule["ports"]}
    if set(allowed) != set(ports):
        yield f"the NetworkPolicy allows {sorted(allowed)}"
    elif allowed["peer"] != [{"podSelector": policy["podSelector"]}]:
        yield "others than nodes reach the peers' port"
    elif not allowed["kafka"] or not allowed["grpc"]:
        yield "everybody reaches the clients' ports"


def _faults_of_probes(container: Mapping[str, Any], config: NodeConfig, grace_s: int) -> Iterator[str]:
    for name, path in (("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        asked = container[name].get("httpGet")
        if asked != {"path": path, "port": "metrics"}:
            yield f"{name} asks {asked}"
    startup = container["startupProbe"]
    if startup["periodSeconds"] * startup["failureThreshold"] < 1_800:
        yield "a start that recovers may be killed"
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    yield from _faults_of_probe("preStop", "it", command)
    waits = _TIMEOUT.search(shlex.join(command))
    if waits is None:
        yield "preStop may wait for ever"
    elif int(waits[1]) + stop_s(config) > grace_s:
        yield f"a pod is killed after {grace_s} s, and may need {int(waits[1]) + stop_s(config):g} s"


def _faults_of_user(spec: Mapping[str, Any]) -> Iterator[str]:
    context = spec["securityContext"]
    user, group = map(int, image().user.split(":"))
    if (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) != (user, group, group):
        yield f"the pod does not run as the image's user {user}:{group}"
    if not context["runAsNonRoot"]:
        yield "the pod may run as root"
    for container in (*spec["initContainers"], *spec["containers"]):
        if container["securityContext"] != {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }:
            yield f"{container['name']} may do more than it needs"
        if "memory" not in container["resources"]["limits"] or "cpu" in container["resources"]["limits"]:
            yield f"{container['name']} has no limit of memory, or one of the processor"


def _faults_of_mounts(found: Mapping[str, Any], config: NodeConfig) -> Iterator[str]:
    spec = found["spec"]["template"]["spec"]
    volumes = {
        one["name"] for one in (*spec["volumes"], *(c["metadata"] for c in found["spec"]["volumeClaimTemplates"]))
    }
    mounts = {
        container["name"]: {one["mountPath"]: one for one in container["volumeMounts"]}
        for container in (*spec["initContainers"], *spec["containers"])
    }
    for name, own in mounts.items():
        yield from (f"{name}: no volume {one['name']}" for one in own.values() if one["name"] not in volumes)
    (claimed,) = (one["metadata"]["name"] for one in found["spec"]["volumeClaimTemplates"])
    data = str(PurePosixPath(config.data_dir).parent)
    if mounts["semel"].get(data, {}).get("name") != claimed:
        yield f"data.dir = {config.data_dir} is not below the claimed volume"
    if "/tmp" not in mounts["semel"]:
        yield "there is no /tmp to write to"
    (init,) = spec["initContainers"]
    if init["command"][-1] != config.cluster_secret_file or init["command"][1:3] != ["-m", "0400"]:
        yield f"cluster.secret.file = {config.cluster_secret_file} is not made, or others may read it"
