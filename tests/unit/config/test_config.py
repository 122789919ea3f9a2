"""A node's settings: where they come from, what they may be, and what is said when one is wrong."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from semel.broker.config.node_config import (
    PARTS,
    SETTINGS,
    TOPIC_DEFAULTS,
    TOPIC_SETTINGS,
    NodeConfig,
    attribute_of,
    value_of,
)
from semel.broker.config.page import configuration_page
from semel.broker.config.permissions import STANDARD_AUTHORIZER
from semel.broker.config.sources import (
    Address,
    LoadedConfig,
    Source,
    environment_name,
    load_config,
    parse_address,
    with_dynamic,
)
from semel.broker.config.unsupported import INSTEAD
from semel.broker.handlers.topics.rules import node_log_config
from semel.broker.log.config import LogConfig, TopicOnlySettings, kafka_name
from semel.broker.log.journal_config import JournalConfig
from semel.protocol.int_bounds import INT64_MAX
from semel.runtime.setting import ConfigError, settings_of

ROOT = Path(__file__).parents[3]


def load(
    tmp_path: Path, toml: str = "", environment: dict[str, str] | None = None, flags: dict[str, object] | None = None
) -> LoadedConfig:
    file = tmp_path / "semel.toml"
    file.write_text(toml)
    return load_config(
        file=file,
        environment=environment or {},
        flags=[(f"--set {name}", name, value) for name, value in (flags or {}).items()],
    )


def test_defaults_are_valid_and_named_as_defaults() -> None:
    loaded = load_config(environment={})
    assert loaded.config == NodeConfig()
    assert {loaded.source(name) for name in SETTINGS} == {Source.DEFAULT}


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    toml = "[log.retention]\nms = 1\nbytes = 1\n[log.segment]\nbytes = 1000\n"
    environment = {"SEMEL_LOG_RETENTION_MS": "2", "SEMEL_LOG_RETENTION_BYTES": "2"}
    loaded = load(tmp_path, toml, environment, {"log.retention.ms": "3"})
    assert (loaded.config.log_retention_ms, loaded.source("log.retention.ms")) == (3, Source.FLAG)
    assert (loaded.config.log_retention_bytes, loaded.source("log.retention.bytes")) == (2, Source.ENVIRONMENT)
    assert (loaded.config.log_segment_bytes, loaded.source("log.segment.bytes")) == (1000, Source.FILE)
    assert loaded.source("num.partitions") is Source.DEFAULT


@pytest.mark.parametrize("toml", ["log.retention.ms = 7", '"log.retention.ms" = 7', "[log]\nretention.ms = 7"])
def test_toml_may_nest_names_or_not(tmp_path: Path, toml: str) -> None:
    assert load(tmp_path, toml).config.log_retention_ms == 7


def test_file_can_be_named_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("node.id = 9")
    loaded = load_config(environment={"SEMEL_CONFIG": str(file)})
    assert loaded.config.node_id == 9
    assert loaded.file == with_dynamic(loaded, {"num.partitions": "5"}).file == str(file)
    assert load_config(environment={}).file == ""


@pytest.mark.parametrize(
    ("toml", "environment", "flags", "said"),
    [
        ("log.retenton.ms = 1", {}, {}, r"semel\.toml: .*log\.retenton\.ms; did you mean log\.retention\.ms\?"),
        ("", {"SEMEL_LOG_RETENTON_MS": "1"}, {}, r"SEMEL_LOG_RETENTON_MS .*did you mean SEMEL_LOG_RETENTION_MS\?"),
        ("", {}, {"num.partition": "1"}, r"--set num\.partition: .*did you mean num\.partitions\?"),
        ("", {}, {"zzzzqqqq": "1"}, r"there is no setting zzzzqqqq$"),
        ("num.partitions = 0", {}, {}, r"semel\.toml: num\.partitions = 0 is out of range: 1 to 100000"),
        ("num.partitions = 1.5", {}, {}, r"num\.partitions = 1\.5 is not an int"),
        ("num.partitions = true", {}, {}, r"num\.partitions = True is not an int"),
        (
            "",
            {"SEMEL_NUM_PARTITIONS": "many"},
            {},
            r"variable SEMEL_NUM_PARTITIONS: .*'many' is not an int",
        ),
        ("", {"SEMEL_NUM_PARTITIONS": "9" * 5000}, {}, r"is not an int"),
        ("", {"SEMEL_NUM_PARTITIONS": "٣"}, {}, r"is not an int"),
        ('durability = "disc"', {}, {}, r"durability = disc is not known: use disk or os; did you mean disk\?"),
        ("", {}, {"log.cleanup.policy": "delete,compct"}, r"use delete or compact; did you mean compact\?"),
        ("auto.create.topics.enable = 1", {}, {}, r"not a boolean: true or false"),
        ("log.cleaner.min.cleanable.ratio = 1.5", {}, {}, r"out of range: 0 to 1"),
        ("", {}, {"log.cleaner.min.cleanable.ratio": "nan"}, r"not a double"),
        ('kafka.listen = "9092"', {}, {}, r"kafka\.listen = 9092 is not HOST:PORT"),
        ('grpc.advertised = "host:0"', {}, {}, r"port 0 cannot be advertised"),
        ("group.min.session.timeout.ms = 10\ngroup.max.session.timeout.ms = 5", {}, {}, r"is more than"),
        ('data.dir = ""', {}, {}, r"data\.dir is empty"),
        ("journal.max.bytes = 2000000", {}, {}, r"journal\.flush\.bytes = .* is more than journal\.max\.bytes"),
        ("not toml", {}, {}, r"is not TOML"),
        ("log = 1", {}, {}, r"there is no setting log"),
    ],
)
def test_wrong_settings_say_where_and_what_is_right(
    tmp_path: Path, toml: str, environment: dict[str, str], flags: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load(tmp_path, toml, environment, flags)


def test_missing_file_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml can't be read: No such file"):
        load_config(file=tmp_path / "missing.toml", environment={})


def test_variables_of_others_are_not_settings() -> None:
    environment = {
        "SEMEL_BOOTSTRAP": "x",
        "SEMEL_SERVICE_HOST": "10.0.0.1",
        "SEMEL_SERVICE_PORT_GRPC": "9094",
        "SEMEL_PORT_9092_TCP_ADDR": "10.0.0.1",
        "SEMEL_NODE_0_SERVICE_HOST": "10.0.0.1",
        "PATH": "/bin",
    }
    assert load_config(environment=environment).config == NodeConfig()


def test_no_setting_looks_like_a_kubernetes_service_variable() -> None:
    encrypted = {"SEMEL_KAFKA_LISTEN": "tls://127.0.0.1:1", "SEMEL_SSL_CLIENT_AUTH": "required"}
    encrypted |= {f"SEMEL_SSL_{file}_LOCATION": "file.pem" for file in ("CERTIFICATE", "KEY", "CA")}
    asking = {"SEMEL_KAFKA_LISTEN": "sasl://127.0.0.1:1", "SEMEL_SASL_USERS_LOCATION": "users"}
    delegated = {**asking, "SEMEL_DELEGATION_TOKEN_SECRET_FILE": "secret"}
    tokens = {"SEMEL_SASL_ENABLED_MECHANISMS": "PLAIN,OAUTHBEARER", "SEMEL_SASL_OAUTHBEARER_EXPECTED_AUDIENCE": "me"}
    tokens |= {"SEMEL_SASL_OAUTHBEARER_JWKS_ENDPOINT_URL": "file:///keys"}
    permitted = {"SEMEL_AUTHORIZER_CLASS_NAME": STANDARD_AUTHORIZER, "SEMEL_SUPER_USERS": "User:admin"}
    for name in (one.name for one in SETTINGS.values() if not one.only_dynamic):
        value = SETTINGS[name].format(value_of(NodeConfig(), name)) or "sqlite:///x"
        if name.endswith(("advertised", "metrics.listen", "peer.listen")):
            value = "host:1"
        elif name.endswith(".listeners"):
            value = "internal=127.0.0.1:1"
        elif name.endswith("overrides"):
            value = "10.0.0.1:1"
        elif SETTINGS[name].choices:
            value = SETTINGS[name].choices[-1]
        elif name == "super.users":
            value = "User:root"
        elif name == "sasl.oauthbearer.jwks.endpoint.url":
            value = tokens[environment_name(name)]
        parts = {
            "ssl": encrypted,
            "sasl": asking,
            "delegation": delegated,
            "authorizer": permitted,
            "super": permitted,
            "allow": permitted,
        }
        others = parts.get(name.partition(".")[0], {}) | (tokens if "oauthbearer" in name else {})
        assert load_config(environment={**others, environment_name(name): value}).source(name) is Source.ENVIRONMENT


def test_what_the_other_nodes_have_to_know_is_not_set_at_a_start(tmp_path: Path) -> None:
    """They place replicas by what the metadata has, which a file of this node does not change."""
    file = tmp_path / "node.toml"
    file.write_text('cordoned.log.dirs = "*"')
    for given in (
        {"file": file},
        {"environment": {"SEMEL_CORDONED_LOG_DIRS": "*"}},
        {"flags": [("--set", "cordoned.log.dirs", "*")]},
    ):
        with pytest.raises(ConfigError, match=r"cordoned\.log\.dirs is set while the node runs, never at a start"):
            load_config(**{"environment": {}, **given})  # type: ignore[arg-type]


def test_no_name_is_a_table_of_another() -> None:
    """`a = 1` and `a.b = 1` can't stand in one TOML file."""
    for name in SETTINGS:
        assert not any(other.startswith(name + ".") for other in SETTINGS), name


def test_every_default_is_what_its_own_text_says() -> None:
    for setting in SETTINGS.values():
        assert setting.parse(setting.format(setting.default)) == setting.default
        assert setting.documentation.endswith("."), setting.name
        assert setting.section


def test_every_setting_is_used_somewhere() -> None:
    """No option is accepted and ignored."""
    declared_in = {ROOT / Path(*part.__module__.split(".")[1:]).with_suffix(".py") for part in (*PARTS, JournalConfig)}
    folders = ("broker", "txn_coordinator", "group_coordinator")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if path not in declared_in]
    texts = "".join(path.read_text() for path in (*sources, ROOT / "cli" / "serve.py"))
    used = set(re.findall(r"\w+", texts))
    used |= {word for path in declared_in for word in re.findall(r"\.(\w+)", path.read_text())}
    assert not [
        setting.name
        for setting in SETTINGS.values()
        if setting.topic_name is None and attribute_of(setting.name) not in used and f'"{setting.name}"' not in texts
    ]


KAFKAS_DEFAULTS = {
    "auto.create.topics.enable": "true",
    "compression.type": "producer",
    "connections.max.idle.ms": "600000",
    "default.replication.factor": "1",
    "delete.topic.enable": "true",
    "fetch.max.bytes": "57671680",
    "group.max.session.timeout.ms": "1800000",
    "group.min.session.timeout.ms": "6000",
    "log.cleaner.backoff.ms": "15000",
    "log.cleaner.delete.retention.ms": "86400000",
    "log.cleaner.max.compaction.lag.ms": "9223372036854775807",
    "log.cleaner.min.cleanable.ratio": "0.5",
    "log.cleaner.min.compaction.lag.ms": "0",
    "log.cleanup.policy": "delete",
    "log.index.interval.bytes": "4096",
    "log.index.size.max.bytes": "10485760",
    "log.message.timestamp.before.max.ms": "9223372036854775807",
    "log.message.timestamp.type": "CreateTime",
    "log.retention.bytes": "-1",
    "log.retention.ms": "604800000",
    "log.roll.ms": "604800000",
    "log.segment.bytes": "1073741824",
    "log.segment.delete.delay.ms": "60000",
    "max.incremental.fetch.session.cache.slots": "1000",
    "max.request.partition.size.limit": "2000",
    "message.max.bytes": "1048588",
    "min.insync.replicas": "1",
    "num.partitions": "1",
    "offset.metadata.max.bytes": "4096",
    "offsets.retention.check.interval.ms": "600000",
    "offsets.retention.minutes": "10080",
    "offsets.topic.num.partitions": "50",
    "offsets.topic.segment.bytes": "104857600",
    "producer.id.expiration.ms": "86400000",
    "socket.request.max.bytes": "104857600",
    "transaction.max.timeout.ms": "900000",
    "transaction.state.log.num.partitions": "50",
    "transaction.state.log.segment.bytes": "104857600",
    "transactional.id.expiration.ms": "604800000",
}
"""Settings that are not here have no counterpart in Kafka, or another default on purpose: what their own text says."""


def test_settings_with_kafkas_names_have_kafkas_defaults() -> None:
    ours = {name: SETTINGS[name].format(SETTINGS[name].default) for name in KAFKAS_DEFAULTS if name in SETTINGS}
    assert ours == KAFKAS_DEFAULTS


def test_settings_of_kafka_that_are_not_here_say_what_is_instead(tmp_path: Path) -> None:
    assert not set(INSTEAD) & (set(SETTINGS) | set(TOPIC_SETTINGS))
    for name, instead in (("log.retention.hours", "use log.retention.ms"), ("broker.id", "use node.id")):
        with pytest.raises(ConfigError, match=f"{name}, unlike in Kafka: {instead}"):
            load(tmp_path, flags={name: "1"})
    for wanted in INSTEAD.values():
        for named in re.findall(r"use ([a-z.]+)", wanted):
            assert named in SETTINGS or named in TOPIC_SETTINGS


def test_topic_settings_are_those_of_the_logs_with_the_same_defaults_and_bounds() -> None:
    assert (
        set(TOPIC_SETTINGS)
        == set(TOPIC_DEFAULTS) | set(settings_of(TopicOnlySettings))
        == {kafka_name(each.name) for each in dataclasses.fields(LogConfig) if each.init and not each.metadata}
    )
    assert node_log_config(NodeConfig()) == LogConfig()
    for name, setting in TOPIC_SETTINGS.items():
        for bound in (setting.minimum, setting.maximum):
            if bound is not None and not setting.choices:
                value = setting.format(type(setting.default)(bound))  # type: ignore[call-arg]
                base = LogConfig(max_compaction_lag_ms=INT64_MAX)
                LogConfig.from_kafka({name: value}, base)


def test_dynamic_settings_win_and_are_checked() -> None:
    loaded = LoadedConfig(NodeConfig(num_partitions=2), {"num.partitions": Source.FLAG})
    changed = with_dynamic(loaded, {"num.partitions": "5"})
    assert (changed.config.num_partitions, changed.source("num.partitions")) == (5, Source.DYNAMIC_BROKER)
    assert with_dynamic(loaded, {}) is loaded
    with pytest.raises(ConfigError, match="out of range"):
        with_dynamic(loaded, {"num.partitions": "0"})


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:0", Address("127.0.0.1", 0)), ("[::1]:9092", Address("::1", 9092)), ("a.b-c:1", Address("a.b-c", 1))],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address("kafka.listen", text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:65536", "::1:9", "a b:1", "host:1x", "[host]:1"])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match=r"HOST:PORT"):
        parse_address("kafka.listen", text)


def test_configuration_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        NodeConfig().node_id = 3  # type: ignore[misc]


def test_the_page_about_configuration_is_up_to_date() -> None:
    """Write it again with: .venv/bin/python -P -m semel.broker.config.page > docs/configuration.md"""
    assert (ROOT / "docs" / "configuration.md").read_text() == configuration_page()


def test_every_bound_of_a_part_has_a_name() -> None:
    """A part's bound that is no setting is one that operators can't change: these alone."""
    plain = {field.name for field in dataclasses.fields(NodeConfig) if "setting" not in field.metadata}
    assert plain == {
        "journal_direct_write_bytes",
        "journal_inline_sync_max_bytes",
        "journal_inline_sync_max_seconds",
        "transaction_record_max_bytes",
        "transaction_tick_max_records",
        "group_records_max_bytes",
        "group_assigned_at_once_max",
    }


def test_every_setting_is_declared_by_one_part_and_collected() -> None:
    declared = [name for part in PARTS for name in settings_of(part)]
    assert sorted(declared) == sorted(set(declared))
    assert list(SETTINGS) == declared
    assert set(SETTINGS) == set(settings_of(NodeConfig))


@pytest.mark.parametrize("bound", ["minimum", "maximum"])
def test_parts_take_every_value_that_the_settings_allow(bound: str) -> None:
    for name, setting in SETTINGS.items():
        value = getattr(setting, bound)
        if value is not None:
            changed: dict[str, Any] = {attribute_of(name): type(setting.default)(value)}  # type: ignore[call-arg]
            if setting.at_most:
                changed[attribute_of(setting.at_most)] = max(SETTINGS[setting.at_most].default, value)
            for lower in SETTINGS.values():
                if lower.at_most == name:
                    changed[attribute_of(lower.name)] = min(lower.default, value)
            dataclasses.replace(NodeConfig(), **changed)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"num_partitions": 0}, r"num\.partitions = 0 is out of range"),
        ({"grpc_max_message_bytes": 2**31}, r"grpc\.max\.message\.bytes = 2147483648 is out of range"),
        ({"log_format": "xml"}, r"log\.format = xml is not known: use text or json"),
        ({"group_consumer_assignors": ("range", "sticky")}, r"sticky.* is not known: use uniform or range"),
        ({"group_consumer_assignors": ()}, r"group\.consumer\.assignors is empty"),
        ({"socket_send_buffer_bytes": 0}, r"socket\.send\.buffer\.bytes = 0 holds nothing"),
        ({"journal_max_bytes": 1}, r"journal\.flush\.bytes = 268435456 is more than journal\.max\.bytes = 1"),
        ({"kafka_max_connections_overrides": ("host:5",)}, r"is not ADDRESS:COUNT"),
    ],
)
def test_code_can_not_give_a_part_what_does_not_work_either(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        NodeConfig(**wrong)


def test_code_may_go_below_the_minimum_of_operators_but_not_to_nothing() -> None:
    assert NodeConfig(journal_file_bytes=1000, journal_buffer_max_bytes=1 << 16).journal_file_bytes == 1000
    assert SETTINGS["journal.file.bytes"].minimum == 1 << 16
    with pytest.raises(ConfigError, match="out of range"):
        NodeConfig(journal_file_bytes=0)


def test_the_address_of_the_metrics_may_be_left_out_but_not_be_wrong() -> None:
    assert load_config(environment={}).config.metrics_listen == ""
    assert load_config(environment={"SEMEL_METRICS_LISTEN": "[::1]:0"}).config.metrics_listen == "[::1]:0"
    with pytest.raises(ConfigError, match=r"metrics\.listen = 9095 is not HOST:PORT"):
        load_config(environment={"SEMEL_METRICS_LISTEN": "9095"})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"SEMEL_AUTHORIZER_CLASS_NAME": STANDARD_AUTHORIZER}, "nobody could make the first ACL"),
        ({"SEMEL_SUPER_USERS": "User:admin"}, "super.users has no effect without authorizer.class.name"),
        ({"SEMEL_ALLOW_EVERYONE_IF_NO_ACL_FOUND": "true"}, "allow.everyone.if.no.acl.found has no effect"),
        (
            {"SEMEL_AUTHORIZER_CLASS_NAME": STANDARD_AUTHORIZER, "SEMEL_SUPER_USERS": "User:a;admin"},
            "admin is no principal",
        ),
        ({"SEMEL_AUTHORIZER_CLASS_NAME": "com.example.Own"}, "authorizer.class.name"),
    ],
)
def test_permissions_without_effect_or_without_a_beginning_are_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(environment=settings)
