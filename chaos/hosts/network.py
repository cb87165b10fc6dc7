"""Hosts that share nothing but a network: Linux namespaces on a bridge, without a container engine.

The network is one more namespace, in which the bridge is; nothing is made in the machine's own.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chaos.hosts.host import NAMESPACES, STAY, Files, Host, begin, run

NETWORK = "10.77.0"
OUTSIDE = f"{NETWORK}.254"
"""The address from which a client that is on no host speaks."""
_CLONE_NEWNET = 0x40000000
_FIRST_USER = 2_001
_NOBODY = "02:00:00:00:ff:ff"
"""A card that no host has."""
_PROGRAMS = ("unshare", "nsenter", "ip", "tc", "mount", "pivot_root")


def missing() -> str:
    """Why there can be no hosts here; empty if there can be."""
    if os.geteuid() != 0:
        return "only root makes network namespaces with links between them"
    if absent := [program for program in _PROGRAMS if not shutil.which(program)]:
        return f"programs are missing: {', '.join(absent)}"
    with tempfile.TemporaryDirectory(prefix="pulse-hosts-") as folder:
        script = (
            f"set -e; ip link add type bridge; mount -t overlay -o ro,lowerdir=/etc:/usr overlay {folder};"
            " mount -t proc proc /proc"
        )
        trial = ["unshare", *NAMESPACES, "/bin/sh", "-c", script]
        done = subprocess.run(trial, capture_output=True, text=True, check=False)
    return f"namespaces are not allowed: {done.stderr.strip()}" if done.returncode else ""


@dataclass
class Network:
    """A bridge and the hosts on it; a context manager, whose folder then has what they wrote."""

    folder: Path
    names: Mapping[str, Sequence[str]]
    """The other names by which each host is known to all of them, as a name service would have them."""
    hosts: dict[str, Host] = field(default_factory=dict)
    first: "subprocess.Popen[bytes] | None" = None

    def __enter__(self) -> "Network":
        setup = [
            "set -e",
            "ip link set lo up",
            "ip link add bridge type bridge",
            f"ip addr add {OUTSIDE}/24 dev bridge",
            "ip link set bridge up",
        ]
        command = ["unshare", "--net", "/bin/sh", "-c", "\n".join([*setup, STAY])]
        self.first = begin(command, "the network")
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts.values():
            host.switch_off()
        if self.first:
            self.first.kill()
            self.first.communicate()

    def add(self, name: str, files: Files) -> Host:
        """Make a host and switch it on; its folder has everything that it writes."""
        number = list(self.names).index(name)
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        host = Host(name, self.address(name), _FIRST_USER + number, folder, files, self)
        self.hosts[name] = host
        host.switch_on()
        return host

    def address(self, name: str) -> str:
        """The address of a host, whether it is on or not."""
        return f"{NETWORK}.{list(self.names).index(name) + 1}"

    def names_file(self) -> str:
        """Lines of /etc/hosts."""
        lines = (f"{self.address(name)} {' '.join([name, *more])}\n" for name, more in self.names.items())
        return "".join(lines)

    def connect(self, host: Host) -> None:
        """Plug a host in: a link between it and the bridge."""
        port = f"to-{host.name}"[:15]
        # The same card each time: to another one, the other hosts would speak a minute later.
        card = f"02:00:00:00:00:{host.uid % 100:02d}"
        self.ip(f"link add {port} type veth peer name eth0 address {card} netns {host.pid}")
        self.ip(f"link set {port} master bridge up")
        run(["nsenter", "-t", str(host.pid), "-n", "ip", "addr", "add", f"{host.address}/24", "dev", "eth0"])
        run(["nsenter", "-t", str(host.pid), "-n", "ip", "link", "set", "eth0", "up"])

    def ip(self, arguments: str) -> None:
        """Run `ip` where the bridge is."""
        assert self.first
        run(["nsenter", "-t", str(self.first.pid), "-n", "ip", *arguments.split()])

    @contextmanager
    def lost(self, sender: str, receiver: str) -> Iterator[None]:
        """What one host sends to another is lost, without an error; the other direction works."""
        neighbour = ["nsenter", "-t", str(self.hosts[sender].pid), "-n", "ip", "neigh"]
        address = [self.address(receiver), "dev", "eth0"]
        run([*neighbour, "replace", *address, "lladdr", _NOBODY, "nud", "permanent"])
        try:
            yield
        finally:
            run([*neighbour, "del", *address])

    @contextmanager
    def refused(self, sender: str, receiver: str) -> Iterator[None]:
        """What one host sends to another is refused at once, as it has no route."""
        route = ["nsenter", "-t", str(self.hosts[sender].pid), "-n", "ip", "route"]
        unreachable = ["unreachable", self.address(receiver)]
        run([*route, "replace", *unreachable])
        try:
            yield
        finally:
            run([*route, "del", *unreachable])

    @contextmanager
    def slowed(self, name: str, rate: str, queue: str) -> Iterator[None]:
        """A host sends no faster than a rate, such as 1mbit; what does not fit into its queue is lost."""
        discipline = ["nsenter", "-t", str(self.hosts[name].pid), "-n", "tc", "qdisc"]
        bucket = ["tbf", "rate", rate, "burst", "10kb", "limit", queue]
        run([*discipline, "replace", "dev", "eth0", "root", *bucket])
        try:
            yield
        finally:
            run([*discipline, "del", "dev", "eth0", "root"])

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Sockets of this thread, and of those that it starts, are in the network, as those of a client.

        Those that are open stay where they are.
        """
        assert self.first
        before = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
        inside = os.open(f"/proc/{self.first.pid}/ns/net", os.O_RDONLY)
        try:
            _enter(inside)
            yield
        finally:
            _enter(before)
            os.close(inside)
            os.close(before)


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "the namespace cannot be entered")
