"""Actions of the harness beside the commands: send events, lose topics, stop the broker."""

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
from chaos.surroundings import superuser
from chaos.waiting import PATIENCE_S, wait
from pulse_resources import kafka
from pulse_resources.local import state
from pulse_resources.local.layout import Layout
from pulse_resources.settings import load_settings

AGE = "UPDATE processed_event_ids SET claimed_on = claimed_on - 60 WHERE tenant_id = %s"


def send(world: World, step: Step, api_url: str | None) -> None:
    """Send events directly to the tenant's topic."""
    a = step.arguments
    sent = events.events(a["seed"], a["slug"], a["count"], hostile=world.hostile)
    world.send(sent, kafka.producer())


def collect(world: World, step: Step, api_url: str | None) -> None:
    """Send events through the HTTP API, all valid for any version; the broker may be stopped meanwhile."""
    if api_url is None:
        return
    a = step.arguments
    sent = list(events.events(a["seed"], a["slug"], a["count"], fit=True))
    with _standing_still(a["still_s"]):
        world.collect(sent, api_url, PATIENCE_S)


def lose(world: World, step: Step, api_url: str | None) -> None:
    """Make the topic lose events: by retention, or by recreation, also with fewer partitions."""
    world.archive()
    match step.arguments["how"]:
        case "retention":
            _retention(world, step.arguments["partitions"], step.arguments["share"])
        case how:
            _recreate(world, partitions=1 if how == "fewer" else None)


def _retention(world: World, partitions: Sequence[int], share: float) -> None:
    """Delete the oldest waiting messages of some partitions."""
    topic, settled = world.tenant.topic, world.progress().settled
    for partition in partitions:
        # Messages that arrived after the topic was read stay: their loss could not be accounted for.
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
    wait(lambda: topic not in kafka.partition_counts(), "the topic is still there")
    world.recreated()
    if partitions is not None:
        creations = kafka.admin().create_topics(
            [NewTopic(topic, partitions, 1, config={"message.timestamp.type": "LogAppendTime"})]
        )
        for future in creations.values():
            future.result(PATIENCE_S)
        wait(lambda: kafka.partition_counts().get(topic) == partitions, "the topic is not there")
    else:
        kafka.create_topics([topic])


def age(world: World, step: Step, api_url: str | None) -> None:
    """Age claims by two months, beyond their retention."""
    with superuser() as connection:
        before = world.progress()
        connection.execute(AGE, [world.tenant.tenant_id])
    # Existing claims are of positions planned so far.
    world.forgets.append(before._replace(planned=world.progress().planned))


@contextmanager
def _standing_still(seconds: float) -> Iterator[None]:
    """Stop the broker for some seconds, whatever the block does."""
    stack_state = state.read(Layout(load_settings().home))
    process = stack_state.services["kafka"].process if stack_state and seconds else None
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
