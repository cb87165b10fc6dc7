"""Faults of hosts and of the links between them: drawn by a seed, begun, and ended."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import permutations

from chaos.hosts.composed import Deployment

SERVERS = ("data", "control", "spark", "front", "front-2")
SLOW_RATE, SLOW_QUEUE = "2mbit", "30kb"


class Kind(StrEnum):
    """What fails. `OFF` and `SLOW` concern one host; the others what `host` sends to `other`."""

    OFF = "is gone"
    SLOW = "sends 2 Mbit/s at most, and loses packets beyond"
    LOST = "loses all packets to"
    CUT = "is cut off from"
    REFUSED = "is refused each connection and packet by"


@dataclass(frozen=True)
class Fault:
    """One fault of a host, or of the link from it to another."""

    kind: Kind
    host: str
    other: str = ""

    def __str__(self) -> str:
        return f"{self.host} {self.kind} {self.other}".rstrip()

    @contextmanager
    def happening(self, deployment: Deployment) -> Iterator[None]:
        """Cause the fault for as long as the block runs."""
        network = deployment.network
        with ExitStack() as stack:
            match self.kind:
                case Kind.OFF:
                    network.hosts[self.host].switch_off()
                    stack.callback(deployment.switch_on, self.host)
                case Kind.SLOW:
                    stack.enter_context(network.slowed(self.host, SLOW_RATE, SLOW_QUEUE))
                case Kind.REFUSED:
                    stack.enter_context(network.refused(self.host, self.other))
                case Kind.LOST | Kind.CUT:
                    stack.enter_context(network.lost(self.host, self.other))
                    if self.kind is Kind.CUT:
                        stack.enter_context(network.lost(self.other, self.host))
            yield


def all_faults() -> list[Fault]:
    """Each single fault."""
    alone = [Fault(kind, host) for kind in (Kind.OFF, Kind.SLOW) for host in SERVERS]
    pairs = [pair for pair in permutations(SERVERS, 2) if not _are_fronts(*pair)]
    links = [Fault(kind, *pair) for kind in (Kind.LOST, Kind.REFUSED) for pair in pairs]
    cuts = [Fault(Kind.CUT, sender, receiver) for sender, receiver in pairs if sender < receiver]
    return alone + links + cuts


def draw(rng: random.Random, at_once: int) -> tuple[Fault, ...]:
    """Draw faults that happen together. A host that is gone has no other fault."""
    while True:
        chosen = tuple(rng.sample(all_faults(), at_once))
        switched_off = {fault.host for fault in chosen if fault.kind is Kind.OFF}
        touched = [host for fault in chosen for host in (fault.host, fault.other)]
        links = {frozenset((fault.host, fault.other)) for fault in chosen}
        if len(links) == at_once and all(touched.count(host) == 1 for host in switched_off):
            return chosen


def _are_fronts(one: str, other: str) -> bool:
    """Whether both are front hosts, which never speak to each other."""
    return one.startswith("front") and other.startswith("front")
