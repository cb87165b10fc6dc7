"""A process that has imported what Spark's tasks need, and is forked for each Python daemon of one server.

Spark starts a Python daemon per session. Its imports take up to 2.5 seconds of a core and 200 MB, which forks
share. So the first daemon of a server leaves a template behind; the next ones pass it their standard
streams, folder, path and environment, and wait while a fork of it does their work.

The template listens on a socket in Linux's abstract namespace, whose name no other server, account, container
or set of modules computes, and answers its own account alone. It ends with the server, or when it has had no
fork for a while. Where it cannot be used, a daemon does its imports itself.
"""

import hashlib
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress

IDLE_S = 120.0
CONNECT_S = 5.0
_STANDARD = (0, 1, 2)
_FORKED = b"forked"
_LARGEST = 1 << 20
"""Bytes of a path and an environment."""
_CREDENTIALS = struct.Struct("3i")


def serve_by_fork(load: Callable[[], None], work: Callable[[], None]) -> bool:
    """Have a fork of this server's template do a daemon's work, and wait for its end.

    Args:
        load: what the template does once, before its first fork.
        work: what a fork does.

    Returns:
        False if there is no template and none could be started: the work is not done.
    """
    try:
        parent = os.pidfd_open(os.getppid())
    except (AttributeError, OSError):  # not Linux, or the server has ended
        return False
    try:
        connection = _connect(lambda listener: _start(listener, parent, load, work))
    except OSError:
        return False
    finally:
        os.close(parent)
    with connection:
        return _pass_on(connection)


def _connect(start: Callable[[socket.socket], None]) -> socket.socket:
    """Connect to the template; start it if it does not exist."""
    address = _address()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, suppress(OSError):
        listener.bind(address)
        listener.listen()
        start(listener)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        deadline = time.monotonic() + CONNECT_S
        while True:
            try:
                connection.connect(address)
                break
            except ConnectionRefusedError:  # another daemon has the name, and does not listen yet
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.01)
        if not _of_this_account(connection):
            raise PermissionError("the template belongs to another account")
    except BaseException:
        connection.close()
        raise
    return connection


def _address() -> str:
    """Name of the socket: of this server, account, container, interpreter and path of modules."""
    namespaces = [os.stat(f"/proc/self/ns/{name}").st_ino for name in ("pid", "mnt")]  # noqa: PTH116
    modules = [place for place in sys.path if place != os.getcwd()]  # noqa: PTH109 - each session has a folder
    identity = [os.getuid(), os.getppid(), *namespaces, sys.executable, modules, sys.argv[1:]]
    return f"\0pulse-spark-python-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()}"


def _of_this_account(connection: socket.socket) -> bool:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.getuid())


def _pass_on(connection: socket.socket) -> bool:
    """Give what makes this process a daemon to a fork of the template, and wait for the fork's end."""
    folder = os.open(".", os.O_RDONLY)
    try:
        message = json.dumps([sys.path, dict(os.environ)]).encode()
        socket.send_fds(connection, [message], [*_STANDARD, folder])
        forked = connection.recv(len(_FORKED)) == _FORKED
    except OSError:
        return False
    finally:
        os.close(folder)
    if forked:
        for descriptor in _STANDARD:
            os.close(descriptor)  # Spark reads the fork's end from them
        with suppress(OSError):
            connection.recv(1)
    return forked


def _start(listener: socket.socket, parent: int, load: Callable[[], None], work: Callable[[], None]) -> None:
    """Fork this process once to become the template."""
    if os.fork():
        return
    try:
        _detach()
        load()
        _answer(listener, parent, work)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _detach() -> None:
    """Leave the daemon's input and output to the daemon: Spark talks with it through them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in _STANDARD[:2]:
        os.dup2(nothing, descriptor)
    os.close(nothing)


def _answer(listener: socket.socket, parent: int, work: Callable[[], None]) -> None:
    """Fork for each connection, until the server has ended or there has been no fork for a while."""
    poll = select.poll()
    for watched in (listener.fileno(), parent):
        poll.register(watched, select.POLLIN)
    idle_since = time.monotonic()
    while time.monotonic() - idle_since < IDLE_S:
        ready = {descriptor for descriptor, _ in poll.poll(IDLE_S / 4 * 1000)}
        if parent in ready:
            return
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            with connection:
                if _of_this_account(connection):
                    _fork(listener, connection, work)
        if _has_forks():
            idle_since = time.monotonic()


def _has_forks() -> bool:
    """Whether a fork lives; reaps the others."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def _fork(listener: socket.socket, connection: socket.socket, work: Callable[[], None]) -> None:
    message, descriptors, _, _ = socket.recv_fds(connection, _LARGEST, len(_STANDARD) + 1)
    if len(descriptors) == len(_STANDARD) + 1 and os.fork() == 0:
        try:
            listener.close()
            _become(message, descriptors)
            connection.send(_FORKED)
            work()
            os._exit(0)
        except SystemExit as exit_:
            os._exit(exit_.code if isinstance(exit_.code, int) else 1)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    for descriptor in descriptors:
        os.close(descriptor)


def _become(message: bytes, descriptors: list[int]) -> None:
    """Take the streams, folder, path and environment of the daemon that asked."""
    for standard, descriptor in zip(_STANDARD, descriptors, strict=False):
        os.dup2(descriptor, standard)
    os.fchdir(descriptors[-1])
    for descriptor in descriptors:
        os.close(descriptor)
    sys.path[:], environment = json.loads(message)
    os.environ.clear()
    os.environ.update(environment)
