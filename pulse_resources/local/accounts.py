"""Accounts: a stack started by root runs each third-party server under another user.

The server's folder is the only part of the stack that the account can read. An account may be unable to reach
`$PULSE_HOME` (a clone in a private home): then the folder is under /var/tmp, and `$PULSE_HOME/<service>` is a
link to it. Programs that it cannot reach are copied beside its data.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pulse_resources.errors import Terminal, UserError
from pulse_resources.local.layout import PRIVATE, Layout
from pulse_resources.process.faults import fail_point

_NUMBERS = {"kafka": 61_501, "minio": 61_502}
"""User ids from the range that systemd reserves for services without an entry in /etc/passwd."""
PROGRAMS = "programs"
"""Folder in a service's folder: copies of programs that its account can reach."""


@dataclass(frozen=True)
class Account:
    """User of a service that runs without root privileges."""

    name: str
    uid: int
    gid: int

    def reaches(self, path: Path) -> bool:
        """Whether it may enter (or run) `path`, according to the kernel."""
        return not run(self, "test", "-x", str(path)).returncode


def account(layout: Layout, service: str) -> Account | None:
    """Account of a service; None: it runs as the stack's own user.

    That is so if the stack is not root's, or has data of an earlier version which the account cannot reach.
    """
    if os.geteuid() != 0:
        return None
    number, base = _NUMBERS[service], layout.home / service
    owner = Account(f"pulse-{service}", number, number)
    exists = base.exists() and not base.is_symlink()
    return None if exists and not owner.reaches(layout.home) else owner


def existing_account(names: Sequence[str]) -> Account | None:
    """First of these users that exists on the machine; None if the stack is not root's.

    Raises:
        UserError: none of them exists.
    """
    if os.geteuid() != 0:
        return None
    for name in names:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise UserError(
        f"this cannot run as root, and there is no user {' or '.join(map(repr, names))}",
        fix="Create one of them, or run Pulse as an ordinary user",
    )


def folder(layout: Layout, service: str, owner: Account | None) -> Path:
    """Folder of a service, made on demand; an account owns only `data` in it.

    Raises:
        Terminal: the folder was elsewhere, and is gone.
    """
    base = layout.home / service
    if owner is None:
        return layout.folder(service)
    if base.is_symlink() and not base.exists():
        raise Terminal(
            f"{base} points to {base.readlink()}, which is gone, and Pulse's data with it",
            fix="Run `make clean` to start again, or put the folder back",
        )
    if not base.exists():
        if owner.reaches(layout.home):
            base.mkdir(mode=PRIVATE)
        else:  # new: a folder left by an earlier home of this name has passwords that are lost
            base.symlink_to(tempfile.mkdtemp(prefix=f"pulse-{layout.key}-", dir="/var/tmp"))
    base = base.resolve()
    os.chown(base, 0, owner.gid)  # it may enter, but replace nothing beside its data, such as programs
    base.chmod(0o710)
    data = base / "data"
    if not data.exists():
        data.mkdir(mode=PRIVATE)
    give_to(owner, data)
    return base


def give_to(owner: Account, data: Path) -> None:
    """Give data to the account: it is new, or of a version that ran the service as root.

    The folder itself comes last, as a mark of completion: a process that dies before is repeated.
    """
    if data.stat().st_uid == owner.uid:
        return
    for path, _, files in os.walk(data, topdown=False):
        for name in files:
            give(owner, Path(path, name))
        fail_point("accounts.before_folder")
        give(owner, Path(path))
    give(owner, data)  # if it is a file


def elsewhere(home: Path) -> list[Path]:
    """Folders of a home's services that are outside of it."""
    folders = [home / service for service in ("postgres", *_NUMBERS)]
    return [folder.resolve() for folder in folders if folder.is_symlink()]


def reachable(owner: Account | None, program: Path, base: Path, beside: Sequence[Path] = ()) -> Path:
    """Path of a program, or of its copy in `base` if the account cannot reach it.

    Args:
        program: a file to run, or a folder of them.
        beside: files that must lie beside it.
    """
    if owner is None or owner.reaches(program):
        return program
    copies, version = base / PROGRAMS, f"{program.stat().st_mtime_ns:x}"
    copy = copies / version / program.name
    if not copy.exists():
        fresh = Path(tempfile.mkdtemp(prefix=f".{PROGRAMS}", dir=base))
        (fresh / version).mkdir()
        for source in filter(Path.exists, (program, *beside)):
            if source.is_dir():
                shutil.copytree(source, fresh / version / source.name, symlinks=True, copy_function=_link)
            else:
                _link(source, fresh / version / source.name)
        fresh.chmod(0o755)
        shutil.rmtree(copies, ignore_errors=True)  # from another version
        fresh.rename(copies)
    return copy


def _link(source: str | Path, target: str | Path) -> None:
    """Make a hard link; a copy across file systems."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def give(owner: Account | None, path: Path) -> None:
    """Give a file or folder to the account."""
    if owner is not None:
        os.lchown(path, owner.uid, owner.gid)


def run(owner: Account | None, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a short command as the account, with text output and a minimal environment."""
    return subprocess.run(
        command,
        cwd="/",
        user=owner.uid if owner else None,
        group=owner.gid if owner else None,
        extra_groups=[] if owner else None,
        env={"PATH": os.defpath, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
