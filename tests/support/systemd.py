"""A systemd for a test: first process of its namespaces, on a read-only machine with folders of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.hosts.composed import IMAGE, ROOT, build_image
from chaos.hosts.network import missing as no_namespaces
from chaos.waiting import wait
from pulse_resources.local import spark
from support.docs import blocks

PROGRAM = Path("/usr/lib/systemd/systemd")
CHECKOUT = "/opt/checkout"
TARGETS = ("sysinit", "basic", "network-online", "network", "shutdown", "multi-user")
_UNITS = Path("/usr/lib/systemd/system")
_JOURNAL = ("systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
_SCRIPT = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys
umount -R /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup
{loopback}
mount -t tmpfs tmpfs {folder}/own; cd {folder}/own
mkdir -p etc .etc units opt/checkout opt/cache/pulse/{jars}; mkdir opt/pulse
mount -t overlay overlay -o lowerdir=/etc,upperdir=etc,workdir=.etc /etc
rm -rf /etc/systemd/system /etc/pulse; mkdir /etc/systemd/system
cp {folder}/units/* units; mount --bind units {units}
mount -t overlay overlay -o ro,lowerdir={layers} opt/pulse
mount -o bind,ro {checkout} opt/checkout
[ ! -d {cache} ] || mount -o bind,ro {cache} opt/cache/pulse/{jars}
mount --rbind opt /opt
for place in /run /var/lib /var/log /srv /tmp /dev/shm; do mount -t tmpfs tmpfs $place; done
chmod 1777 /tmp /dev/shm
cd /; mount -o remount,bind,ro /
exec env -i container=other PATH={path} {program} --unit=multi-user.target --log-target=null --show-status=no
"""


class Systemd:
    """The one that runs; `run` is for root."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def run(self, script: str, *, check: bool = True) -> str:
        """Run a script of the shell there; returns what it wrote.

        Raises:
            AssertionError: its exit code is not 0, and `check` is given.
        """
        (child, *_) = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        command = ["nsenter", "-t", child, "-a", "env", "-i", f"PATH={_PATH}", "/bin/bash", "-euc", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def install(self) -> None:
        """Do what docs/production.md says before the units start."""
        commands = next(block for block in blocks("production.md") if "systemd-sysusers" in block)
        self.run(f"cd {CHECKOUT}\n{commands}\nsystemctl daemon-reload")

    def state(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run(f"systemctl show --value -p {name} {unit}").strip()

    def journal(self, unit: str) -> str:
        """What a unit has written."""
        return self.run(f"journalctl --sync; journalctl -o cat -u {unit}")


def missing() -> str:
    """Why no systemd can be started here; empty if one can be."""
    if not PROGRAM.exists() or not shutil.which("journalctl"):
        return "there is no systemd (Debian: apt install systemd)"
    return no_namespaces() or ("" if _groups() else "no cgroup2 is mounted")


@contextmanager
def started(folder: Path, *, own_network: bool = True) -> Iterator[Systemd]:
    """Start a systemd that has this checkout, and Pulse where docs/production.md installs it.

    Args:
        own_network: no service of the machine can be reached.
    """
    layers, groups = build_image(folder / "image"), _groups()
    assert groups
    for name in ("own", "units"):
        (folder / name).mkdir()
    for target in TARGETS:
        (folder / "units" / f"{target}.target").write_text(f"[Unit]\nDescription={target}\n")
    for name in _JOURNAL:
        shutil.copy(_UNITS / name, folder / "units")
    with (folder / "units" / "multi-user.target").open("a") as unit:
        unit.write(f"Requires={_JOURNAL[0]}\nAfter={_JOURNAL[0]}\n")
    cache = spark.DOWNLOAD.path
    script = _SCRIPT.format(
        folder=folder,
        units=_UNITS,
        layers=":".join(map(str, layers)),
        checkout=ROOT,
        cache=cache,
        jars=cache.name,
        path=_PATH,
        program=PROGRAM,
        loopback="ip link set lo up" if own_network else "",
    )
    group = groups / f"pulse-test-{os.getpid()}"
    group.mkdir()
    network = "--net" if own_network else ""
    namespaces = f"unshare --mount --pid --ipc --uts {network} --cgroup --fork --kill-child=KILL /bin/sh -c"
    entered = f'echo $$ > {group}/cgroup.procs; exec {namespaces} "$0"'
    command = ["setpriv", "--pdeathsig=KILL", "/bin/sh", "-c", entered, script]
    process = subprocess.Popen(command)
    try:
        systemd = Systemd(process)
        wait(lambda: process.poll() is not None or _is_up(systemd), "systemd is not up")
        assert process.poll() is None, "systemd ended"
        _let_python_be_read(systemd)
        yield systemd
    finally:
        process.kill()
        process.wait()
        wait(lambda: _removed(group), "processes are left")


def _groups() -> Path | None:
    lines = Path("/proc/mounts").read_text().splitlines()
    return next((Path(line.split()[1]) for line in lines if line.split()[2] == "cgroup2"), None)


def _is_up(systemd: Systemd) -> bool:
    try:
        return systemd.run("systemctl is-active multi-user.target", check=False).strip() == "active"
    except (FileNotFoundError, ValueError):  # it has no child yet
        return False


def _let_python_be_read(systemd: Systemd) -> None:
    """An interpreter in somebody's home is hidden from services: the one of a developer is."""
    if sys.base_prefix.startswith(("/home/", "/root/")):
        lines = f"[Service]\\nProtectHome=tmpfs\\nBindReadOnlyPaths={sys.base_prefix}\\n"
        place = "/etc/systemd/system/pulse-.service.d"
        systemd.run(f"mkdir -p {place}; printf '{lines}' > {place}/python.conf; ls {IMAGE}/bin/python")


def _removed(group: Path) -> bool:
    for path, _, _ in os.walk(group, topdown=False):
        try:
            Path(path).rmdir()
        except OSError:  # the kernel is still ending its processes
            return False
    return True
