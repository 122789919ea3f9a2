"""docker/compose-cluster.yaml and docker/kubernetes: valid by their schemas, and what they say of Semel is so.

The nodes that they start are started in tests/e2e/test_deployed_nodes.py, and in containers in test_compose_cluster.py.
"""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from deployment_faults import faults_of_compose, faults_of_manifests
from deployments import (
    COMPOSE,
    DOCKER,
    KUBERNETES,
    ROOT,
    compose,
    environment_of,
    interpolated,
    manifests,
    nodes_of,
    pod_numbers,
    stateful_set,
)

from semel.broker.config.sources import load_config

OLDEST = "1.28"
"""The first version of Kubernetes that tells a pod its number by a label."""
PAGE = (ROOT / "docs" / "containers.md").read_text()
IN_NETWORK = {f"semel-{number}": f"semel-{number}" for number in (1, 2, 3)}

Change = Callable[[Any], object]


def put(path: str, value: object) -> Change:
    """Return a change that sets what is at a path of keys; `...` takes it away."""

    def change(whole: Any) -> None:
        *way, last = (int(key) if key.isdigit() else key for key in path.split("/"))
        for key in way:
            whole = whole[key]
        if value is ...:
            del whole[last]
        else:
            whole[last] = value

    return change


def changed(whole: Any, change: Change) -> Any:
    whole = copy.deepcopy(whole)
    change(whole)
    return whole


# --- Schemas ----------------------------------------------------------------------------------------------------------


def validate_compose(file: Path) -> str:
    """Return what the schema of Compose's specification says against a file; empty: nothing."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("name", ["compose.yaml", "compose-cluster.yaml"])
def test_the_compose_files_are_valid_and_a_mistake_in_them_is_found(tmp_path: Path, name: str) -> None:
    text = interpolated((DOCKER / name).read_text(), {})
    file = tmp_path / name
    file.write_text(text)
    assert validate_compose(file) == ""
    for old, new in (
        ("restart: unless-stopped", "restarts: always"),
        ("condition: service_healthy", "condition: well"),
    ):
        assert old in text
        file.write_text(text.replace(old, new))
        assert "does not match" in validate_compose(file) or "Schema validation errors" in validate_compose(file)


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_the_manifests_are_valid_and_a_mistake_in_them_is_found(version: str) -> None:
    for document in manifests():
        kubernetes_validate.validate(document, version, strict=True)
    wrong = changed(stateful_set(manifests()), put("spec/template/spec/containers/0/livenessProb", {}))
    with pytest.raises(kubernetes_validate.ValidationError, match="livenessProb"):
        kubernetes_validate.validate(wrong, version, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kubectl_makes_of_the_folder_what_these_tests_look_at() -> None:
    made = subprocess.run(["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    rewritten = re.sub(r"semel-settings-\w+", "semel-settings", made.stdout)

    def sort(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(documents, key=lambda one: (one["kind"], one["metadata"]["name"]))

    assert sort(list(yaml.safe_load_all(rewritten))) == sort(manifests())


# --- What they say of Semel -------------------------------------------------------------------------------------------


def test_the_compose_file_starts_a_cluster() -> None:
    assert list(faults_of_compose(compose())) == []
    names = {f"NODE_{number}_HOST": f"semel-{number}" for number in (1, 2, 3)}
    assert list(faults_of_compose(compose(**names), hosts=IN_NETWORK)) == []
    one = dict.fromkeys(IN_NETWORK, "log.example.com")
    assert list(faults_of_compose(compose(ADVERTISED_HOST="log.example.com"), hosts=one)) == []


SETTING = "services/semel-2/environment/SEMEL_"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (put(SETTING + "MIN_INSYNC_REPLICA", "2"), "semel-2: environment: SEMEL_MIN_INSYNC_REPLICA is not a setting"),
        (put(SETTING + "MIN_INSYNC_REPLICAS", "two"), "semel-2: environment variable SEMEL_MIN_INSYNC_REPLICAS"),
        (put(SETTING + "MIN_INSYNC_REPLICAS", "1"), "semel-2: min.insync.replicas = 1 protects nothing"),
        (put(SETTING + "DEFAULT_REPLICATION_FACTOR", "1"), "semel-2: default.replication.factor = 1"),
        (put(SETTING + "NODE_ID", "1"), "two nodes have one SEMEL_NODE_ID"),
        (put(SETTING + "KAFKA_LISTEN", "0.0.0.0:9092"), "semel-2: kafka.advertised has port 9102, and 9092"),
        (put(SETTING + "KAFKA_LISTEN", "127.0.0.1:9102"), "semel-2: kafka.listen = 127.0.0.1:9102 is not reached"),
        (put(SETTING + "PEER_ADVERTISED", "localhost:9096"), "semel-2: peer.advertised names localhost"),
        (put(SETTING + "BOOTSTRAP", "localhost:9094"), "semel-2: its health check asks localhost:9094"),
        (put(SETTING + "CLUSTER_SECRET_FILE", "/etc/secret"), "semel-2: /etc/secret is on no volume"),
        (put("services/semel-2/ports/0", "127.0.0.1:9092:9102"), "semel-2: it publishes"),
        (put("services/semel-2/ports/0", ...), "semel-2: it publishes"),
        (put("services/semel-2/hostname", "semel"), "semel-2: its host name is semel"),
        (put("services/semel-2/user", "root"), "semel-2: it does not run as the image's user"),
        (put("services/semel-2/volumes/0", "data-1:/var/lib/semel"), "semel-2: the volume data-1 is of semel-1"),
        (put("services/semel-2/volumes/0", "data-4:/var/lib/semel"), "semel-2: no volume data-4"),
        (put("services/semel-2/volumes/1", "secrets:/run/semel"), "semel-2: the secrets are not mounted to be read"),
        (put("services/semel-2/restart", "no"), "semel-2: it is not started again"),
        (put("services/semel-2/stop_grace_period", "15s"), "semel-2: it is killed after 15s, and may need 30 s"),
        (put("services/semel-2/depends_on", {}), "semel-2: it waits for []"),
        (put("services/semel-2/healthcheck/test", ["CMD", "semel", "health"]), "semel-2: the health check fails for"),
        (
            put("services/semel-2/healthcheck/test", ["CMD", "semel", "health", "--only-one"]),
            "semel-2: the health check calls `semel health --only-one`",
        ),
        (put("services/postgres/healthcheck", ...), "semel-1: postgres has no health check"),
        (put("services/postgres/healthcheck/test/3", "::1"), "the database is healthy by `CMD pg_isready --host ::1"),
        (put("services/postgres/image", "postgres:latest"), "postgres:latest is not one version"),
        (put("services/postgres/environment/POSTGRES_USER", "root"), "the nodes look for semel@postgres/semel"),
        (put("services/postgres/environment/POSTGRES_PASSWORD_FILE", "/run/semel/pw"), "nobody makes /run/semel/pw"),
        (put("services/secrets/restart", "always"), "postgres: secrets never ends"),
        (
            put("services/semel-1/environment/SEMEL_METADATA_URL", "postgresql+psycopg://semel:p@postgres/semel"),
            "the database's URL has a password in it",
        ),
        (put("services/semel-3", ...), "there are 2 nodes"),
    ],
)
def test_the_check_of_compose_finds(change: Change, fault: str) -> None:
    found = list(faults_of_compose(changed(compose(), change)))
    assert any(one.startswith(fault) for one in found), found


def test_the_manifests_start_a_cluster() -> None:
    assert list(faults_of_manifests(manifests())) == []


def test_the_image_of_the_manifests_is_of_this_version() -> None:
    spec = stateful_set(manifests())["spec"]["template"]["spec"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    named = {container["image"] for container in (*spec["initContainers"], *spec["containers"])}
    assert named == {f"registry.example.com/semel:{version}"}


PARTS = [document["kind"] for document in manifests()]


def in_part(kind: str, path: str, value: object, *, at: int = 0) -> Change:
    """Return a change in the manifest of a kind, the one `at` of several."""
    places = [place for place, each in enumerate(PARTS) if each == kind]
    return put(f"{places[at]}/{path}", value)


def in_pod(path: str, value: object) -> Change:
    return in_part("StatefulSet", f"spec/template/spec/{path}", value)


def in_node(path: str, value: object) -> Change:
    return in_pod(f"containers/0/{path}", value)


def setting(name: str, value: object) -> Change:
    return in_part("ConfigMap", f"data/SEMEL_{name}", value)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (setting("MIN_INSYNC_REPLICA", "2"), "semel-1: environment: SEMEL_MIN_INSYNC_REPLICA is not a setting"),
        (setting("LOG_FORMAT", "xml"), "semel-1: environment variable SEMEL_LOG_FORMAT"),
        (setting("MIN_INSYNC_REPLICAS", "3"), "semel-1: min.insync.replicas = 3"),
        (setting("KAFKA_LISTEN", "0.0.0.0:9192"), "semel-1: kafka.advertised has port 9092, and 9192"),
        (setting("METRICS_LISTEN", "0.0.0.0:9100"), "the container has the ports"),
        (setting("SHUTDOWN_GRACE_MS", "30000"), "a pod is killed after 360 s, and may need 370 s"),
        (setting("DATA_DIR", "/var/lib/semel"), "data.dir = /var/lib/semel is not below the claimed volume"),
        (setting("CLUSTER_SECRET_FILE", "/run/secret"), "cluster.secret.file = /run/secret is not made"),
        (in_part("StatefulSet", "spec/replicas", 5), "semel-1: default.replication.factor = 3, and there are 5"),
        (in_part("StatefulSet", "spec/serviceName", "semel"), "semel-1: kafka.advertised names"),
        (in_part("StatefulSet", "spec/selector/matchLabels", {"app": "semel"}), "the StatefulSet does not select"),
        (in_node("env/2/valueFrom/fieldRef/fieldPath", "metadata.name"), "semel-1: environment variable SEMEL_NODE_ID"),
        (in_node("env/3/value", "$(POD_NAME).semel-nodes.svc:9092"), "semel-1: kafka.advertised names semel-1.semel"),
        (
            in_node("env/5/value", "$(POD_NAM).semel-nodes.$(POD_NAMESPACE).svc:9096"),
            "semel-1: peer.advertised names $",
        ),
        (in_node("ports/0/containerPort", 9192), "the container has the ports"),
        (in_node("args", ["serve", "--nodes", "3"]), "the container runs"),
        (in_node("readinessProbe", {"exec": {"command": ["semel", "cluster", "status"]}}), "readinessProbe asks None"),
        (in_node("livenessProbe/httpGet/path", "/readyz"), "livenessProbe asks"),
        (in_node("livenessProbe/httpGet/port", "grpc"), "livenessProbe asks"),
        (in_node("startupProbe/failureThreshold", 12), "a start that recovers may be killed"),
        (
            in_node("lifecycle/preStop/exec/command", ["sh", "-c", "timeout 300 semel cluster state"]),
            "preStop: it calls `semel cluster state`",
        ),
        (
            in_node("lifecycle/preStop/exec/command", ["sh", "-c", "until semel cluster status; do sleep 1; done"]),
            "preStop may wait for ever",
        ),
        (in_node("lifecycle/preStop/exec/command", ["sleep", "5"]), "preStop: it calls no command of semel"),
        (in_pod("terminationGracePeriodSeconds", 300), "a pod is killed after 300 s, and may need 330 s"),
        (in_pod("securityContext/runAsUser", 1000), "the pod does not run as the image's user"),
        (in_pod("securityContext/runAsNonRoot", False), "the pod may run as root"),
        (in_node("securityContext/readOnlyRootFilesystem", False), "semel may do more than it needs"),
        (in_node("resources/limits/cpu", "1"), "semel has no limit of memory, or one of the processor"),
        (in_node("volumeMounts/2", ...), "there is no /tmp to write to"),
        (in_node("volumeMounts/0/name", "disk"), "semel: no volume disk"),
        (in_pod("initContainers/0/command/2", "0644"), "cluster.secret.file = /run/semel/cluster.secret is not made"),
        (in_part("Service", "spec/ports/0/targetPort", "grpc"), "service semel: port kafka 9092 leads to grpc"),
        (in_part("Service", "spec/ports/0/port", 9093), "service semel: port kafka 9093 leads to kafka"),
        (in_part("Service", "spec/selector", {"app": "semel"}), "service semel selects no pod"),
        (in_part("Service", "spec/publishNotReadyAddresses", False, at=1), "pods have no name of their own"),
        (in_part("Service", "spec/ports/1", ...), "clients begin at ['kafka']"),
        (in_part("PodDisruptionBudget", "spec/maxUnavailable", 2), "more than one node may be away for a drain"),
        (in_part("PodDisruptionBudget", "spec/selector/matchLabels", {"app": "a"}), "the PodDisruptionBudget selects"),
        (in_part("NetworkPolicy", "spec/ingress/0/from", [{"podSelector": {}}]), "others than nodes reach"),
        (in_part("NetworkPolicy", "spec/ingress/1/from", ...), "everybody reaches the clients' ports"),
        (in_part("NetworkPolicy", "spec/ingress/2", ...), "the NetworkPolicy allows"),
        (in_part("Service", "kind", "Secret", at=0), "a Secret is among the manifests"),
    ],
)
def test_the_check_of_manifests_finds(change: Change, fault: str) -> None:
    found = list(faults_of_manifests(changed(manifests(), change)))
    assert any(one.startswith(fault) for one in found), found


def test_the_page_makes_the_secret_that_the_pods_need() -> None:
    spec = stateful_set(manifests())["spec"]["template"]["spec"]
    ((made, options),) = re.findall(r"kubectl create secret generic (\S+) (.*)", PAGE.replace("\\\n", ""))
    keys = set(re.findall(r"--from-(?:file|literal)=([\w-]+)", options))
    (volume,) = [one["secret"] for one in spec["volumes"] if "secret" in one]
    used = {item["key"] for item in volume["items"]}
    names = {volume["secretName"]}
    for variable in spec["containers"][0]["env"]:
        if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
            used.add(reference["key"])
            names.add(reference["name"])
    assert names == {made}
    assert used == keys


def own_kustomization() -> str:
    """The file that the page lets its reader write."""
    (found,) = re.findall(r"^   ```yaml\n(.*?)^   ```$", PAGE, re.DOTALL | re.MULTILINE)
    return textwrap.dedent(found)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_the_kustomization_of_the_page_changes_the_image_the_storage_and_a_setting(tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path / "semel" / "docker" / "kubernetes")
    (tmp_path / "kustomization.yaml").write_text(own_kustomization())
    made = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    documents = list(yaml.safe_load_all(made.stdout))
    for document in documents:
        kubernetes_validate.validate(document, OLDEST, strict=True)
    found = stateful_set(documents)
    (claim,) = found["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast-disks"
    assert claim["spec"]["resources"]["requests"]["storage"] == "200Gi"
    spec = found["spec"]["template"]["spec"]
    images = {container["image"] for container in (*spec["initContainers"], *spec["containers"])}
    assert all(f"make image IMAGE={image}\n" in PAGE for image in images)
    (settings,) = [document for document in documents if document["kind"] == "ConfigMap"]
    (reference,) = spec["containers"][0]["envFrom"]
    assert reference["configMapRef"]["name"] == settings["metadata"]["name"]
    plain = next(one for one in manifests() if one["kind"] == "ConfigMap")
    added = settings["data"].items() - plain["data"].items()
    assert load_config(environment=dict(added)).sources
    assert {document["metadata"]["namespace"] for document in documents} == {"logs"}


def test_what_the_page_names_is_in_the_files() -> None:
    variables = r"\b(NODE_\d_HOST|[A-Z]+_IMAGE|ADVERTISED_HOST|PUBLISH_ON)\b"
    used = set(re.findall(r"\$\{(\w+):-", COMPOSE.read_text()))
    assert set(re.findall(variables, COMPOSE.read_text())) == used
    documents = manifests()
    name = stateful_set(documents)["metadata"]["name"]
    pods = {f"{name}-{number}" for number in pod_numbers(documents)}
    volumes = {f"data-{pod}" for pod in pods}
    named = re.findall(r"kubectl (?:exec|delete pod|delete pvc) (\S+)", PAGE)
    assert named
    assert set(named) <= pods | volumes
    services = re.findall(r"--file docker/compose-cluster.yaml \S+ (?:--\S+ )*(semel-\S+)", PAGE)
    assert services
    assert set(services) <= set(compose()["services"])
    assert f"docker volume rm {compose()['name']}_" in PAGE
    clients = [environment_of(node)["SEMEL_KAFKA_ADVERTISED"] for node in nodes_of(compose()).values()]
    assert f"`{','.join(clients)}`" in PAGE
    assert all(environment_of(node)["SEMEL_GRPC_ADVERTISED"] in PAGE for node in nodes_of(compose()).values())
