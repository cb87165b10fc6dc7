"""A host: namespaces with an address, processes, shared memory and a tree of files of their own.

Of the machine it has the programs (/usr, /etc) and what it is given by name, all read-only. It lives as long
as its first process, which ends when the process that made it ends, however that happens. The kernel then
removes links, mounts and whatever runs there.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.hosts.network import Network

Files = Mapping[str, Sequence[Path]]
"""What a host has of the machine, read-only, by its path there: a file, a folder, or folders laid over each
other, the uppermost first."""
NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=KILL")
# A child that ends is forgotten by the kernel when SIGCHLD is ignored, which `exec` passes on.
STAY = "trap '' CHLD; echo ready; exec cat >/dev/null"
"""The end of a first process's script."""
_ACCOUNTS = ("postgres", "kafka", "minio")
"""Users of services. Postgres does not start where a process of its user has the number that it had."""
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - each host mounts its own
_DEVICES = ("null", "zero", "full", "random", "urandom")


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
        script = "\n".join(["set -e", *self._mounts(), STAY])
        self.first = begin(["unshare", *NAMESPACES, "/bin/sh", "-c", script], self.name)
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
        written = self.folder / "etc"
        written.mkdir(exist_ok=True)
        (written / "hostname").write_text(f"{self.name}\n")
        (written / "hosts").write_text("127.0.0.1 localhost\n" + self.network.names_file())
        (written / "resolv.conf").write_text("")
        users = self.users().items()
        (written / "passwd").write_text(
            "".join(f"{name}:x:{uid}:{uid}::/srv/pulse:/bin/sh\n" for name, uid in users)
        )
        (written / "group").write_text("".join(f"{name}:x:{uid}:\n" for name, uid in users))
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
        files = {"/usr": [Path("/usr")], "/etc": [self.folder / "etc", Path("/etc")], **self.files}
        for target, sources in files.items():
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


def begin(command: list[str], name: str) -> "subprocess.Popen[bytes]":
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


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
