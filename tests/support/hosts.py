"""Hosts that share nothing but a network: Linux namespaces on a bridge, without a container engine.

A host has an address, processes, shared memory and a tree of files of its own. Of the machine it has the
programs (/usr, /etc) and what it is given by name, all read-only. The network is one more namespace, in which
the bridge is; nothing is made in the machine's own. Each namespace lives as long as its first process, which
ends when the process of the tests ends, however that happens. The kernel then removes hosts, links, mounts
and whatever runs there.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

Files = Mapping[str, Sequence[Path]]
"""What a host has of the machine, read-only, by its path there: a file, a folder, or folders laid over each
other, the uppermost first."""

NETWORK = "10.77.0"
OUTSIDE = f"{NETWORK}.254"
"""The address from which a client that is on no host speaks."""
_CLONE_NEWNET = 0x40000000
_FIRST_USER = 2_001
_ACCOUNTS = ("postgres", "kafka", "minio")
"""Users of services. Postgres does not start where a process of its user has the number that it had."""
_NOBODY = "02:00:00:00:ff:ff"
"""A card that no host has."""
_NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=KILL")
_PROGRAMS = ("unshare", "nsenter", "ip", "mount", "pivot_root")
# A child that ends is forgotten by the kernel when SIGCHLD is ignored, which `exec` passes on.
_STAY = "trap '' CHLD; echo ready; exec cat >/dev/null"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - each host mounts its own
_DEVICES = ("null", "zero", "full", "random", "urandom")


def missing() -> str:
    """Why there can be no hosts here; empty if there can be."""
    if os.geteuid() != 0:
        return "only root makes network namespaces with links between them"
    if absent := [program for program in _PROGRAMS if not shutil.which(program)]:
        return f"there is no program {', '.join(absent)}"
    with tempfile.TemporaryDirectory(prefix="pulse-hosts-") as folder:
        script = (
            f"set -e; ip link add type bridge; mount -t overlay -o ro,lowerdir=/etc:/usr overlay {folder};"
            " mount -t proc proc /proc"
        )
        trial = ["unshare", *_NAMESPACES, "/bin/sh", "-c", script]
        done = subprocess.run(trial, capture_output=True, text=True, check=False)
    return f"namespaces are not allowed: {done.stderr.strip()}" if done.returncode else ""


@dataclass
class Host:
    """One of the hosts; `files` is as in `Files`, `folder` has all that it writes."""

    name: str
    address: str
    uid: int
    folder: Path
    files: Files
    network: "Network"
    first: "subprocess.Popen[bytes] | None" = None
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def root(self) -> Path:
        """Its root folder, as the machine names it."""
        return self.folder / "root"

    @property
    def pid(self) -> int:
        """Number of its first process, as the machine counts."""
        assert self.first, f"{self.name} is not on"
        (child,) = _children(self.first.pid)
        return child

    def users(self) -> dict[str, int]:
        """Numbers of its users: on each host they are others."""
        return {"root": 0, "pulse": self.uid} | {
            name: self.uid + 100 * n for n, name in enumerate(_ACCOUNTS, start=1)
        }

    def switch_on(self) -> None:
        """Start it, with the files that it had before."""
        self._make_folders()
        script = "\n".join(["set -e", *self._mounts(), _STAY])
        self.first = _begin(["unshare", *_NAMESPACES, "/bin/sh", "-c", script], self.name)
        self.network.connect(self)

    def switch_off(self) -> None:
        """End all that runs on it at once, as a host that loses its power: its address is gone, too."""
        first, self.first = self.first, None
        if first:
            first.kill()  # the kernel then kills the first process, and with it all others
            first.communicate()
        while self.started:
            self.started.pop().wait()

    def command(self, command: Sequence[str], folder: str = "/", user: str = "pulse") -> list[str]:
        """The command line that runs `command` there, in `folder`, as one of `users`."""
        user = str(self.users()[user])
        entered = ["-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "-S", user, "-G", user]
        return ["nsenter", *entered, "/bin/sh", "-c", 'cd "$0" && exec "$@"', folder, *command]

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        folder: str = "/",
        user: str = "pulse",
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end; returns its output as text."""
        return subprocess.run(
            self.command(command, folder, user),
            env=self.environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def start(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: str = "/",
        user: str = "pulse",
    ) -> "subprocess.Popen[bytes]":
        """Start a process that stays, with its output in a log of the machine."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.command(command, folder, user),
                env=self.environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process

    @staticmethod
    def send(process: "subprocess.Popen[bytes]", number: int = signal.SIGTERM) -> None:
        """Send a signal to a process that `start` started."""
        for child in _children(process.pid):
            with suppress(ProcessLookupError):
                os.kill(child, number)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Variables of a process there: none of the machine's."""
        path = "/opt/pulse/bin:/opt/postgres/bin:/opt/minio:/usr/local/bin:/usr/bin:/usr/sbin"
        return {"PATH": path, "HOME": "/srv/pulse", "LANG": "C.UTF-8"} | dict(more or {})

    def _make_folders(self) -> None:
        for name in (
            "usr",
            "etc",
            "proc",
            "dev",
            "tmp",
            "srv/pulse",
            "var/lib",
            "var/log",
            "run",
            "opt",
            "srv",
        ):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            if Path("/", name).is_symlink() and not (self.root / name).is_symlink():
                (self.root / name).symlink_to(Path("/", name).readlink())
        for name in ("srv/pulse", "var/lib", "var/log", "run", "srv"):
            os.chown(self.root / name, self.uid, self.uid)
        (self.root / "tmp").chmod(0o1777)
        own = self.folder / "etc"
        own.mkdir(exist_ok=True)
        (own / "hostname").write_text(f"{self.name}\n")
        (own / "hosts").write_text("127.0.0.1 localhost\n" + self.network.names_file())
        (own / "resolv.conf").write_text("")
        users = self.users().items()
        (own / "passwd").write_text(
            "".join(f"{name}:x:{uid}:{uid}::/srv/pulse:/bin/sh\n" for name, uid in users)
        )
        (own / "group").write_text("".join(f"{name}:x:{uid}:\n" for name, uid in users))
        for target, sources in self.files.items():
            inside = self.root / target.lstrip("/")
            if sources[0].is_dir():
                inside.mkdir(parents=True, exist_ok=True)
            else:
                inside.parent.mkdir(parents=True, exist_ok=True)
                inside.touch()

    def _mounts(self) -> Iterator[str]:
        root = self.root
        yield f"hostname {self.name}"
        yield "ip link set lo up"
        yield f"mount --bind {root} {root}"
        given = {"/usr": [Path("/usr")], "/etc": [self.folder / "etc", Path("/etc")], **self.files}
        for target, sources in given.items():
            if len(sources) > 1:
                layers = ":".join(map(str, sources))
                yield f"mount -t overlay -o ro,lowerdir={layers} overlay {root}{target}"
            else:
                yield f"mount -o bind,ro {sources[0]} {root}{target}"
        yield f"mount -t proc proc {root}/proc"
        yield f"mount -t tmpfs -o mode=755 tmpfs {root}/dev"
        for name in _DEVICES:
            yield f"touch {root}/dev/{name}; mount --bind /dev/{name} {root}/dev/{name}"
        yield f"ln -s /proc/self/fd {root}/dev/fd; mkdir {root}{_SHARED_MEMORY}"
        yield f"mount -t tmpfs -o mode=1777 tmpfs {root}{_SHARED_MEMORY}"
        yield f"cd {root}; pivot_root . .; umount -l .; cd /"


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
        command = ["unshare", "--net", "/bin/sh", "-c", "\n".join([*setup, _STAY])]
        self.first = _begin(command, "the network")
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
        _run(["nsenter", "-t", str(host.pid), "-n", "ip", "addr", "add", f"{host.address}/24", "dev", "eth0"])
        _run(["nsenter", "-t", str(host.pid), "-n", "ip", "link", "set", "eth0", "up"])

    def ip(self, arguments: str) -> None:
        """Run `ip` where the bridge is."""
        assert self.first
        _run(["nsenter", "-t", str(self.first.pid), "-n", "ip", *arguments.split()])

    @contextmanager
    def lost(self, sender: str, receiver: str) -> Iterator[None]:
        """What one host sends to another is lost, without an error; the other direction works."""
        neighbour = ["nsenter", "-t", str(self.hosts[sender].pid), "-n", "ip", "neigh"]
        address = [self.address(receiver), "dev", "eth0"]
        _run([*neighbour, "replace", *address, "lladdr", _NOBODY, "nud", "permanent"])
        try:
            yield
        finally:
            _run([*neighbour, "del", *address])

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


def _begin(command: list[str], name: str) -> "subprocess.Popen[bytes]":
    """Start a first process, and wait until it has made what it makes."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    if process.stdout.readline() != b"ready\n":
        reason = process.stderr.read().decode(errors="replace").strip()
        process.communicate()
        raise RuntimeError(f"{name} cannot be made: {reason}")
    return process


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
