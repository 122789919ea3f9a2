"""librdkafka's own test programme, one process per test number.

Wanted is a checkout in which the library and `tests/test-runner` were built. Tests that need no broker are left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from results import Expectation, ExpectedList, Outcome, Result
from secured import KEY_PASSWORD, USER
from served import Served, serving
from suite_tools import write_tools
from token_endpoint import TokenEndpoint

BROKER_VERSION: Final = "4.0.0"
"""What the tests are told that they run against: decides which of them apply."""
SCENARIOS: Final[Mapping[str, Mapping[str, str]]] = {
    "default": {},
    "noautocreate": {"auto_create_topics_enable": "false"},
}
"""What the tests call a scenario, and the node's settings for it."""
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
LINE: Final = re.compile(r"\| (?P<name>\d{4}_\w+) +\| +(?P<state>[A-Z]+) \| +(?P<seconds>[\d.]+)s \| ?(?P<detail>.*)")
"""A test in the summary at the end of a run."""
IN_PARTS: Final[Mapping[str, str]] = {
    "0081": "0081-admin.c",
    "0126": "0126-oauthbearer_oidc.c",
    "0135": "0135-sasl_credentials.cpp",
    "0142": "0142-reauthentication.c",
}
"""Tests that end at their first failure, with the file that has their parts: each part is run on its own."""
PART: Final = re.compile(
    r"^(?:static )?(?:void )?(?P<name>do_test\w*)\((?:(?!^}).)*?SUB_TEST(?:_QUICK)?\(", re.M | re.S
)
"""A function that is a part: only a part says that it begins."""
COMPLAINTS: Final[Mapping[str, re.Pattern[str]]] = {
    "0101": re.compile(r"(?:expecting|rxbytes was not highest|message consumed out of order|Failed to) [^\[\n]*")
}
"""Tests that only say what is wrong, and pass: with one of these words in the log they failed."""
SETTINGS: Final[Mapping[str, str]] = {
    "log_cleaner_backoff_ms": "1000",
    "log_flush_interval_ms": "1000",
    "group_initial_rebalance_delay_ms": "3000",
}
"""One test waits 20 seconds for a log to be compacted, which is done as far as the log is flushed. Others count
rebalances, and with Kafka's default for the delay two consumers that come one after the other need one."""
ONE_REPLICA: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

typedef void *make(const char *, int, int, char *, size_t);

void *rd_kafka_NewTopic_new(const char *topic, int partitions, int replicas, char *error, size_t size) {
    make *real = (make *)dlsym(RTLD_NEXT, "rd_kafka_NewTopic_new");
    return real(topic, partitions, replicas > 1 ? 1 : replicas, error, size);
}
"""
"""Loaded before librdkafka: some tests ask for three replicas, and don't care how many they get."""
FAILURE: Final = re.compile(r'### Test "(?P<name>\d{4}_\w+)[^"]*" failed at (?P<place>\S+) at .*###\n(?P<why>.*)')
RESULT: Final = re.compile(r'"(?P<name>\d{4}_\w+)": \{')
OUTCOMES: Final = {"PASSED": Outcome.PASSED, "FAILED": Outcome.FAILED, "SKIPPED": Outcome.SKIPPED}
SKIP, PASS = ": SKIP: ", ": PASS ("
"""What the log says of a part that was begun."""
LOCAL: Final = "Filtered due to negative test flags"
"""What is said of a test that was left out because it needs no broker."""


NEVER_QUICK: Final = frozenset({"0126", "0142"})
"""Tests that do next to nothing in quick mode."""
SECURED: Final = ("0097_*", "0126_*", "0135_*", "0142_*")
"""Tests that are skipped by a client that neither encrypts nor logs in."""
OAUTHBEARER: Final = "OAUTHBEARER"


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run the suite.

    tests:     which of them, as in a shell; all but those of `SECURED` without it
    protocol:  how its clients connect, as Kafka calls it; mechanism: and log in
    settings:  the node's, with underscores for dots
    """

    name: str
    arguments: Sequence[str] = ()
    variables: tuple[tuple[str, str], ...] = ()
    tests: Sequence[str] = ()
    protocol: str = "plaintext"
    mechanism: str = ""
    settings: tuple[tuple[str, str], ...] = ()

    def has(self, test: str) -> bool:
        if self.tests:
            return any(fnmatchcase(test, pattern) for pattern in self.tests)
        return not any(fnmatchcase(test, pattern) for pattern in SECURED)


REAUTHENTICATION: Final = (("connections_max_reauth_ms", "10000"),)
"""What the tests of it expect."""
VARIANTS: Final = (
    Variant("librdkafka"),
    Variant("librdkafka-idempotent", ("-P",)),
    Variant("librdkafka-consumer", (), (("TEST_CONSUMER_GROUP_PROTOCOL", "consumer"),)),
    Variant("librdkafka-ssl", tests=("0097_*",), protocol="ssl", settings=(("ssl_client_auth", "required"),)),
    Variant(
        "librdkafka-plain",
        tests=("0135_*", "0142_*"),
        protocol="sasl_plaintext",
        mechanism="PLAIN",
        settings=REAUTHENTICATION,
    ),
    Variant(
        "librdkafka-scram",
        tests=("0081_*", "0135_*", "0142_*"),
        protocol="sasl_ssl",
        mechanism="SCRAM-SHA-512",
        settings=REAUTHENTICATION,
    ),
    Variant(
        "librdkafka-oauthbearer",
        tests=("0126_*", "0142_*"),
        protocol="sasl_ssl",
        mechanism=OAUTHBEARER,
        settings=REAUTHENTICATION,
    ),
)
"""As it is; with every producer idempotent; with the consumer protocol of KIP-848; and encrypted, with certificates,
passwords and tokens, the tests of those."""


class LibrdkafkaSuite:
    """Runs the tests against a node per scenario."""

    def __init__(
        self,
        checkout: Path,
        folder: Path,
        expected: ExpectedList,
        timeout_s: float,
        jars: Path | None,
        *,
        nodes: int,
        full: bool,
    ) -> None:
        self._jars = jars
        self._nodes = nodes
        self._tests = checkout / "tests"
        self._folder = folder
        self._expected = expected
        self._timeout_s = timeout_s
        self._is_full = full
        self._libraries = f"{checkout / 'src'}:{checkout / 'src-cpp'}"
        self._preloaded = ""
        self._name_of: dict[str, str] = {}
        if not (self._tests / "test-runner").exists():
            raise FileNotFoundError(f"{self._tests / 'test-runner'} is missing: build librdkafka and its tests first")

    def version(self) -> str:
        text = (self._tests.parent / "src" / "rdkafka.h").read_text()
        number = re.search(r"#define RD_KAFKA_VERSION\s+0x(..)(..)(..)", text)
        return ".".join(str(int(part, 16)) for part in number.groups()) if number else "unknown"

    def run(self, variant: Variant, wanted: Callable[[str], bool], report: Callable[[Result], None]) -> list[Result]:
        """Run one variant. Only tests whose name is `wanted`."""
        self._preloaded = self._one_replica() if self._nodes == 1 else ""
        results: dict[str, Result] = {}
        left = []
        for name in filter(wanted, self._names()):
            if not variant.has(name):
                continue
            self._name_of[name[:4]] = name
            reason = self._expected.left_out(variant.name, name)
            known = self._expected.find(variant.name, name)
            if known is not None and known.expectation is Expectation.IF_JAVA and self._jars is None:
                reason = known.reason
            if reason is None:
                left.append(name)
            else:
                results[name] = Result(variant.name, name, Outcome.SKIPPED, 0, reason)
        numbers = sorted({name[:4] for name in left})
        for scenario, of_scenario in SCENARIOS.items():
            if not numbers:
                break
            folder = self._folder / variant.name / scenario
            settings = {**SETTINGS, **of_scenario, **dict(variant.settings)}
            with serving(folder, self._nodes, **settings) as node, self._tokens(variant, node) as tokens:
                for number in numbers:
                    for result in self._run_number(variant, scenario, number, node, tokens):
                        if scenario == "default" or result.outcome is not Outcome.SKIPPED:
                            results[result.test] = result
                            report(result)
            numbers = sorted({name[:4] for name, result in results.items() if self._other_scenario(result)})
        return list(results.values())

    @staticmethod
    def _other_scenario(result: Result) -> bool:
        """A test of another scenario is passed over without a reason."""
        return result.outcome is Outcome.SKIPPED and not result.detail

    @staticmethod
    def _tokens(variant: Variant, node: Served) -> AbstractContextManager[TokenEndpoint | None]:
        """Return where the tests of tokens get them."""
        if variant.mechanism != OAUTHBEARER:
            return nullcontext()
        return TokenEndpoint(node.security.issuer, node.security.folder)

    def _one_replica(self) -> str:
        """Compile what gives every topic one replica. Returns the path of the library."""
        library = self._folder.resolve() / "one_replica.so"
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-", "-ldl"]
        self._folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(command, input=ONE_REPLICA, text=True, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"cc could not compile a small library: {done.stderr.strip()}")
        return str(library)

    def _names(self) -> list[str]:
        """Ask the programme which tests it has."""
        report = self._folder / "names.json"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._process({"TESTS": "none", "TEST_REPORT": str(report)}, self._folder / "names.log", 60)
        return [found["name"] for found in RESULT.finditer(report.read_text())]

    def _run_number(
        self, variant: Variant, scenario: str, number: str, node: Served, tokens: TokenEndpoint | None
    ) -> Iterator[Result]:
        for part in self._parts(number):
            name = f"{self._name_of[number]}/{part}"
            if part and (reason := self._expected.left_out(variant.name, name)) is not None:
                yield Result(variant.name, name, Outcome.SKIPPED, 0, reason)
                continue
            results = self._attempt(variant, scenario, number, part, node, tokens, 1)
            if any(self._worth_a_second_try(result) for result in results):
                again = self._attempt(variant, scenario, number, part, node, tokens, 2)
                results = [replace(other, attempts=2) for other in again]
            yield from results

    def _parts(self, number: str) -> Sequence[str]:
        if number not in IN_PARTS:
            return ("",)
        return sorted({found["name"] for found in PART.finditer((self._tests / IN_PARTS[number]).read_text())})

    def _worth_a_second_try(self, result: Result) -> bool:
        bad = result.outcome in (Outcome.FAILED, Outcome.TIMED_OUT)
        return bad and self._expected.find(result.suite, result.test) is None

    def _attempt(
        self,
        variant: Variant,
        scenario: str,
        number: str,
        part: str,
        node: Served,
        tokens: TokenEndpoint | None,
        attempt: int,
    ) -> list[Result]:
        folder = self._folder / variant.name / scenario
        conf = folder / "test.conf"
        bootstrap = node.bootstrap_of(variant.protocol)
        settings = {
            "bootstrap.servers": bootstrap,
            "broker.address.family": "v4",
            "test.timeout.multiplier": "2",
            **node.security.client_settings(variant.protocol, USER, variant.mechanism),
            **({} if tokens is None else tokens.client_settings()),
        }
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        variables = {
            **dict(variant.variables),
            **({} if variant.protocol == "plaintext" else certificates(node)),
            **({} if tokens is None else tokens.variables()),
            "TESTS": number,
            "TEST_SCENARIO": scenario,
            "TEST_KAFKA_VERSION": BROKER_VERSION,
            "RDKAFKA_TEST_CONF": str(conf),
            "BROKERS": bootstrap,
            "KAFKA_PATH": str(write_tools(folder.resolve() / "kafka", node.admin_settings(), self._jars)),
            **({"SUBTESTS": f"{part}:"} if part else {}),
        }
        log = folder / f"{number}{part}-{attempt}.log"
        begun = time.monotonic()
        quick = () if self._is_full or number in NEVER_QUICK else ("-Q",)
        code = self._process(variables, log, self._timeout_s, *quick, *variant.arguments)
        seconds = time.monotonic() - begun
        text = COLOURS.sub("", log.read_text(errors="replace"))
        results = [
            Result(variant.name, found["name"], OUTCOMES.get(found["state"], Outcome.FAILED), float(found["seconds"]),
                   found["detail"].strip())
            for found in LINE.finditer(text)
            if found["name"].startswith(number) and found["detail"].strip() != LOCAL
        ]  # fmt: skip
        if code is None:
            results = [Result(variant.name, number, Outcome.TIMED_OUT, seconds, f"after {self._timeout_s:.0f} s")]
        elif code and all(result.outcome is not Outcome.FAILED for result in results):
            name, said = last_words(text)
            results = [Result(variant.name, name or number, Outcome.FAILED, seconds, f"{said} (exit code {code})")]
        elif not node.alive:
            results = [Result(variant.name, number, Outcome.FAILED, seconds, "the node ended")]
        elif number in COMPLAINTS and (complaint := COMPLAINTS[number].search(text)):
            results = [replace(result, outcome=Outcome.FAILED, detail=complaint[0].strip()) for result in results]
        elif part and (skipped := why_skipped(part, text)) is not None:
            results = [replace(result, outcome=Outcome.SKIPPED, detail=skipped) for result in results]
        return [replace(result, test=f"{result.test}/{part}") for result in results] if part else results

    def _process(self, variables: Mapping[str, str], log: Path, timeout_s: float, *arguments: str) -> int | None:
        """Run the programme. Returns its exit code, or None where it had to be killed."""
        environment = {**os.environ, **variables, "LD_LIBRARY_PATH": self._libraries, "LD_PRELOAD": self._preloaded}
        with log.open("w") as out:
            process = subprocess.Popen(
                ["./test-runner", "-p1", "-L", *arguments],
                cwd=self._tests, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                return process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return None


def why_skipped(part: str, text: str) -> str | None:
    """Return why a part did nothing, or None: it passes all the same."""
    said = [line.strip() for line in re.findall(rf"\[ {part}:(.*)", text)]
    if not said:
        return "not run in this mode"
    reasons = [line.rpartition(SKIP)[2].removesuffix("]").strip() for line in said if SKIP in line]
    return reasons[0] if reasons and not any(PASS in line for line in said) else None


def certificates(node: Served) -> dict[str, str]:
    """Return where the tests find certificates and keys, by the names of the variables that they know."""
    security = node.security
    return {
        "SSL_pkcs": str(security.archive),
        "SSL_pub_pem": str(security.client.certificate),
        "SSL_pub_der": str(security.client_der),
        "SSL_priv_pem": str(security.client.key),
        "SSL_ca_der": str(security.ca_der),
        "SSL_all_cas_pem": str(security.all_cas),
        "SSL_password": KEY_PASSWORD,
        "SSL_client_auth": "required",
    }


def last_words(text: str) -> tuple[str, str]:
    """Return which test failed and why, of a run that ended without a summary."""
    found = FAILURE.search(text)
    if found is not None:
        return found["name"], " ".join(f"{found['place']}: {found['why']}".split())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "", lines[-1] if lines else "nothing was said"
