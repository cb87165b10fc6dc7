"""Current status of the stack: the supervisor's state, checked against /proc and the network."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pulse_resources.local import ports, processes, state
from pulse_resources.local.layout import Layout
from pulse_resources.local.state import ServiceState


@dataclass(frozen=True)
class Row:
    """One service; `state` is `up` or names the problem; seconds and bytes, None if unknown."""

    service: str
    state: str
    address: str
    external: bool
    pid: int | None
    uptime_seconds: float | None
    restarts: int
    memory_bytes: int | None
    note: str

    @property
    def up(self) -> bool:
        return self.state == "up"


@dataclass(frozen=True)
class Status:
    """All services; empty if the stack was never started."""

    rows: tuple[Row, ...]

    @property
    def up(self) -> bool:
        return bool(self.rows) and all(row.up for row in self.rows)

    @property
    def memory_bytes(self) -> int:
        return sum(row.memory_bytes or 0 for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        services = [asdict(row) for row in self.rows]
        return {"up": self.up, "memory_bytes": self.memory_bytes, "services": services}


def status(layout: Layout) -> Status:
    """Check every service once; takes well under a second."""
    recorded = state.read(layout)
    if not recorded:
        return Status(())
    table = processes.table()
    supervised = recorded.supervised
    rows = [_row(service, table, supervised) for service in recorded.services.values()]
    if supervised:
        memory = processes.memory([recorded.supervisor.pid])
        uptime = round(processes.uptime(recorded.supervisor), 1)
        pid = recorded.supervisor.pid
        rows.append(Row("supervisor", "up", "", False, pid, uptime, 0, memory, ""))
    return Status(tuple(rows))


def _row(service: ServiceState, table: dict[int, processes.Process], supervised: bool) -> Row:
    process = service.process if service.process and service.process.alive() else None
    return Row(
        service=service.name,
        state=_state(service, process is not None, supervised),
        address=service.address,
        external=service.external,
        pid=process.pid if process else None,
        uptime_seconds=round(processes.uptime(process), 1) if process else None,
        restarts=service.restarts,
        memory_bytes=(processes.memory(processes.family(process, table)) if process else None),
        note=service.note,
    )


def _state(service: ServiceState, alive: bool, supervised: bool) -> str:
    if not supervised:
        return "unsupervised" if alive else "down"
    if service.phase != "up":
        return service.phase
    if not alive and not service.external:
        return "down"
    return "up" if _answers(service.address) else "not answering"


def _answers(address: str) -> bool:
    """Whether the first `host:port` of an address accepts connections; True if it has none."""
    if address.startswith("unix:"):
        return ports.answers_at(Path(address.removeprefix("unix:")))
    where = ports.named_in(address)
    return where is None or ports.answers(*where)
