"""Hosts on a network of their own, whose links can be cut: network namespaces, joined by a bridge in another.

A host that is cut off finds out by silence alone: nobody refuses its connections or resets them. Hosts know each
other's hardware addresses, so nobody asks for them, and a packet that is to be lost goes to an address that nobody has.

The namespaces have no names. Each lives as long as a process that waits for the end of its input, which is the end of
the tests' own process at the latest, so nothing is left behind. The tests reach the hosts by a link of their own.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

CLIENTS = "clients"
"""The tests' own side, by which all programs come that are not on a host."""
_NETWORKS = 512
"""198.18.0.0/15 is for trials of networks (RFC 2544): nobody has it. Each network takes 256 addresses of it."""
_NOBODY = "02:00:00:00:00:ff"


def why_not() -> str | None:
    """Return why there can be no such network here; None: there can."""
    if os.geteuid() != 0:
        return "network namespaces are for root"
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            return f"no `{program}` here: apt-get install {package}"
    tried = "ip link add left type veth peer name right && ip link add middle type bridge"
    done = subprocess.run(["unshare", "--net", "sh", "-c", tried], capture_output=True, text=True, timeout=30)
    return None if done.returncode == 0 else f"no network namespaces here: {done.stderr.strip()}"


class _Namespace:
    """A network namespace, and the process that keeps it."""

    def __init__(self) -> None:
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo made; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != b"made\n":
            self.close()
            raise AssertionError("unshare made no network namespace")

    @property
    def pid(self) -> int:
        return self._keeper.pid

    def close(self) -> None:
        self._keeper.communicate(timeout=30)


class Network:
    """`hosts` on one bridge. Make it by `network`."""

    def __init__(self, hosts: Sequence[str], parts: ExitStack) -> None:
        self._number = _claim(parts)
        self._switch = _Namespace()
        parts.callback(self._switch.close)
        self._hosts: dict[str, _Namespace | None] = {CLIENTS: None}
        for host in hosts:
            made = self._hosts[host] = _Namespace()
            parts.callback(made.close)
        self._places = {host: place for place, host in enumerate(self._hosts, start=1)}
        self.link = f"semel{self._number}"
        """What the tests' own link is called, beside all others of the machine."""
        parts.callback(self._remove_link)
        self._connect()

    def _connect(self) -> None:
        switch = ["link add bridge type bridge", "link set bridge up"]
        for host, place in self._places.items():
            namespace = self._hosts[host]
            where = "" if namespace is None else f"netns {namespace.pid}"
            _ip(
                None,
                f"link add port{place} netns {self._switch.pid} type veth "
                f"peer name {self._device(host)} address {_hardware(place)} {where}",
            )
            switch += [f"link set port{place} master bridge", f"link set port{place} up"]
        _ip(self._switch, *switch)
        for host, namespace in self._hosts.items():
            device = self._device(host)
            own = [f"address add {self.address(host)}/24 dev {device}", f"link set {device} up"]
            _ip(namespace, *own, *([] if namespace is None else ["link set lo up"]))
        self.heal()

    def _device(self, host: str) -> str:
        return self.link if self._hosts[host] is None else "eth0"

    def address(self, host: str) -> str:
        first, second = divmod(self._number, 256)
        return f"198.{18 + first}.{second}.{self._places[host]}"

    def command(self, host: str, *command: str, user: str = "root") -> list[str]:
        """Return what runs a command on a host."""
        namespace = self._hosts[host]
        assert namespace is not None, "commands of the tests' own side run as they are"
        found = pwd.getpwnam(user)
        whose = ["--setuid", str(found.pw_uid), "--setgid", str(found.pw_gid)]
        return ["nsenter", f"--net=/proc/{namespace.pid}/ns/net", *whose, "--", *command]

    def unplug(self, host: str) -> None:
        """Take a host's link down at the bridge: nothing comes from it any more, and nothing goes there."""
        _ip(self._switch, f"link set port{self._places[host]} down")

    def drop(self, source: str, target: str) -> None:
        """Lose all packets from one host to another. What goes the other way arrives."""
        self._teach(source, {target: _NOBODY})

    def cut(self, one: str, other: str) -> None:
        """Lose what two hosts send to each other."""
        self.drop(one, other)
        self.drop(other, one)

    def heal(self) -> None:
        """End all that was done to the network."""
        _ip(self._switch, *(f"link set port{place} up" for place in self._places.values()))
        for host in self._hosts:
            others = {other: _hardware(place) for other, place in self._places.items() if other != host}
            self._teach(host, others)

    def _teach(self, host: str, known: dict[str, str]) -> None:
        """Tell a host the hardware addresses of others."""
        device = self._device(host)
        learnt = (
            f"neighbor replace {self.address(other)} lladdr {hardware} dev {device} nud permanent"
            for other, hardware in known.items()
        )
        _ip(self._hosts[host], *learnt)

    def _remove_link(self) -> None:
        """It goes with the bridge's namespace, a moment later: the next network may have its name at once."""
        if os.path.exists(f"/sys/class/net/{self.link}"):
            _ip(None, f"link delete {self.link}")


@contextmanager
def network(*hosts: str) -> Iterator[Network]:
    """Make a network, and remove it, also where making it fails half-way. What runs on its hosts has to end first."""
    with ExitStack() as parts:
        yield Network(hosts, parts)


def _hardware(place: int) -> str:
    return f"02:00:00:00:00:{place:02x}"


def _ip(where: _Namespace | None, *lines: str) -> None:
    inside = [] if where is None else ["nsenter", f"--net=/proc/{where.pid}/ns/net", "--"]
    done = subprocess.run(
        [*inside, "ip", "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, f"{done.stderr}{done.stdout}in {lines}"


def _claim(parts: ExitStack) -> int:
    """Take the number of a network that nobody on this machine has now. It is free again when its process has ended."""
    for number in range(_NETWORKS):
        claim = socket.socket(socket.AF_UNIX)
        parts.callback(claim.close)
        try:
            claim.bind(f"\0semel-test-network-{number}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        return number
    raise AssertionError(f"all {_NETWORKS} networks are in use")
