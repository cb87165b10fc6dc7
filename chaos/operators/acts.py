"""What the harness does itself beside the commands: it sends events, loses topics, stops the broker."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from chaos.operators import events
from chaos.operators.schedule import Step
from chaos.operators.world import World
from chaos.sent import REQUEST_S
from chaos.surroundings import superuser
from chaos.waiting import wait
from pulse_resources import kafka
from pulse_resources.local import state
from pulse_resources.local.layout import Layout
from pulse_resources.settings import load_settings

PATIENCE_S = 30.0
AGE = "UPDATE processed_event_ids SET claimed_on = claimed_on - 60 WHERE tenant_id = %s"


def send(world: World, step: Step, door: str | None) -> None:
    """Events straight to the tenant's topic."""
    a = step.arguments
    found = events.events(a["seed"], a["slug"], a["count"], hostile=world.hostile)
    world.send(found, kafka.producer())


def collect(world: World, step: Step, door: str | None) -> None:
    """Events through the door, such as any version takes; the broker may stand still meanwhile."""
    if door is None:
        return
    a = step.arguments
    found = list(events.events(a["seed"], a["slug"], a["count"], fit=True))
    with _standing_still(a["still_s"]):
        world.collect(found, door, REQUEST_S)


def lose(world: World, step: Step, door: str | None) -> None:
    """The topic loses events: by retention, or by being recreated, also with fewer partitions."""
    world.archive()
    match step.arguments["how"]:
        case "retention":
            _retention(world, step.arguments["partitions"], step.arguments["share"])
        case how:
            _recreate(world, partitions=1 if how == "fewer" else None)


def _retention(world: World, partitions: Sequence[int], share: float) -> None:
    """The oldest messages that wait in some partitions are gone."""
    topic, settled = world.tenant.topic, world.progress().settled
    for partition in partitions:
        # What came since the look at the topic stays: nobody would know of it.
        end = world.ends.get((world.generation, partition), 0)
        base = world.bases.get((world.generation, partition), 0)
        waits = settled.get(partition, 0) - base
        if (until := waits + round(share * (end - waits))) > waits:
            for future in kafka.admin().delete_records([TopicPartition(topic, partition, until)]).values():
                future.result(PATIENCE_S)
            world.cut(partition, until)


def _recreate(world: World, partitions: int | None) -> None:
    topic = world.tenant.topic
    for future in kafka.admin().delete_topics([topic]).values():
        future.result(PATIENCE_S)
    wait(lambda: topic not in kafka.partition_counts(), "the topic is still there", PATIENCE_S)
    world.recreated()
    if partitions is not None:
        made = kafka.admin().create_topics(
            [NewTopic(topic, partitions, 1, config={"message.timestamp.type": "LogAppendTime"})]
        )
        for future in made.values():
            future.result(PATIENCE_S)
        wait(lambda: kafka.partition_counts().get(topic) == partitions, "the topic is not there", PATIENCE_S)
    else:
        kafka.create_topics([topic])


def age(world: World, step: Step, door: str | None) -> None:
    """Two months go by: claims that are older than retention may be forgotten."""
    with superuser() as connection:
        before = world.progress()
        connection.execute(AGE, [world.tenant.tenant_id])
    # What is claimed by now is of positions that are planned by now.
    world.forgets.append(before._replace(planned=world.progress().planned))


@contextmanager
def _standing_still(seconds: float) -> Iterator[None]:
    """The broker is stopped for some seconds from now on, whatever the block does."""
    found = state.read(Layout(load_settings().home))
    process = found.services["kafka"].process if found and seconds else None
    if process is None:
        yield
        return
    os.killpg(process.pid, signal.SIGSTOP)

    def go_on() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)

    timer = threading.Timer(seconds, go_on)
    timer.start()
    try:
        yield
    finally:
        timer.join()


ACTS: dict[str, Callable[[World, Step, str | None], None]] = {
    "send": send,
    "collect": collect,
    "lose": lose,
    "age": age,
}
