"""Landlock: permanently restricts what a Linux thread, and everything it starts, may access.

Files, connections and signals that are not listed are denied, whatever runs in the process. It needs no
privileges and applies to root, too. See landlock(7); connections are covered since kernel 6.7.
"""

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

CONNECTIONS_SINCE = 4
"""Landlock ABI version that covers TCP; earlier ones are not used."""
_SCOPES_SINCE = 6
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on every architecture
_VERSION = 1
_BELOW_PATH, _OF_PORT = 1, 2
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""Number of file rights, by the ABI version that introduced them."""
_READ_FILE = 0b100
_BIND, _CONNECT = 1, 2
_SOCKETS, _SIGNALS = 1, 2
_NO_NEW_PRIVILEGES = 38

_libc = ctypes.CDLL(None, use_errno=True)


class _Rules(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Below(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _Port(ctypes.Structure):
    _fields_ = (("rights", ctypes.c_uint64), ("port", ctypes.c_uint64))


def version() -> int:
    """Landlock ABI version of the kernel; 0: not available or switched off."""
    return max(0, int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))))


def restrict(readable: Iterable[Path], ports: Iterable[int]) -> None:
    """Restrict this thread, and those it starts, to reading these files and connecting to these ports.

    No other part of the file system can be opened, executed or changed; no other port of any address, no
    abstract socket and no outside process can be reached. What is open already stays open.

    Args:
        readable: files; missing ones are left out.
        ports: TCP ports, at any address.

    Raises:
        OSError: the kernel does not support it.
    """
    since = version()
    if since < CONNECTIONS_SINCE:
        raise OSError(f"the kernel's Landlock is of version {since}, not {CONNECTIONS_SINCE} or later")
    files = (1 << max(count for began, count in _FILE_RIGHTS.items() if began <= since)) - 1
    scopes = _SOCKETS | _SIGNALS if since >= _SCOPES_SINCE else 0
    rules = _Rules(files, _BIND | _CONNECT, scopes)
    size = ctypes.sizeof(rules) if scopes else _Rules.scopes.offset
    ruleset = _call(_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path in readable:
            if path.is_file():
                _allow_reading(ruleset, path)
        for port in ports:
            _add(ruleset, _OF_PORT, _Port(_CONNECT, port))
        if _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        _call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow_reading(ruleset: int, path: Path) -> None:
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _add(ruleset, _BELOW_PATH, _Below(_READ_FILE, parent))
    finally:
        os.close(parent)


def _add(ruleset: int, kind: int, rule: ctypes.Structure) -> None:
    _call(_ADD, ctypes.c_int(ruleset), ctypes.c_int(kind), ctypes.byref(rule), ctypes.c_uint32(0))


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
