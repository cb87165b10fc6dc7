"""A Spark of one's own, whose executors share nothing with Pulse but the network, and lose a machine at work.

A master, two workers and a Connect server from the pyspark wheel. Its configuration is what the docs say.
"""

import json
import re
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import SecretStr
from support.cluster import TOKEN, Cluster, a_worker_dies_at_work, cluster
from support.ingest import Owner, ingest

from chaos.surroundings import forget_connections, pulse, with_settings
from pulse_api.demo import source
from pulse_pipelines import registry
from pulse_pipelines.backfill import backfill
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.maintenance.policy import Need
from pulse_pipelines.maintenance.run import run
from pulse_pipelines.monitoring import doctor
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_resources import spark
from pulse_resources.errors import UserError
from pulse_resources.local.spark import DOWNLOAD
from pulse_resources.settings import Settings, load_settings
from pulse_resources.spark_catalog import EXTENSIONS

pytestmark = pytest.mark.slow
DOCS = Path(__file__).parents[2] / "docs" / "own-services.md"
LARGEST = "airline_ua"
HALVES = 2
"""Batches in which the events of a day come, so that there is something to merge."""


def documented() -> dict[str, str]:
    """The server's configuration, as the docs give it."""
    (block,) = re.findall(r"```properties\n(.*?)```", DOCS.read_text(), re.DOTALL)
    lines = (line.split(None, 1) for line in block.splitlines() if line and line[0] != "#")
    return {name: value.strip() for name, value in lines}


@pytest.fixture(scope="module")
def own(stack: Settings) -> Iterator[Cluster]:
    defaults = documented()
    packages = defaults.pop("spark.jars.packages").split(",")
    jars = {path.name for path in DOWNLOAD.path.glob("*.jar")}
    assert {
        f"{name}-{number}.jar" for _, name, number in (coordinate.split(":") for coordinate in packages)
    } == jars
    del defaults["spark.master"]
    with cluster({**defaults, "spark.speculation": "true"}) as running:
        forget_connections()
        with with_settings(SPARK__REMOTE=running.place, SPARK__TOKEN=TOKEN, SPARK__PARALLELISM=2):
            yield running
        forget_connections()


@dataclass
class Sent:
    """The demo's events of the last days of the year, each tenant's beside what must become of them."""

    owners: dict[str, Owner]
    events: list[source.Event]

    @property
    def busiest_day(self) -> date:
        days = Counter(event.at.date() for event in self.events if event.tenant == LARGEST)
        return days.most_common(1)[0][0]

    def check(self) -> None:
        """Nothing is lost and nothing is there twice, by what was sent and by the ledger."""
        landed, refused = defaultdict[str, Counter[str]](Counter), Counter[str]()
        for event in self.events:
            if event.valid:
                landed[event.tenant][event.event_id] = 1
            else:
                refused[event.tenant] += 1
        for name, owner in self.owners.items():
            dataset = "weather" if name == source.OPERATOR else "departures"
            rows = owner.rows(dataset, "id, _kafka_partition, _offset")
            assert Counter(row["id"] for row in rows) == landed[name]
            assert len(owner.dead_letters()) == refused[name]
            report = reconcile_tenant(owner.tenant)
            assert report.balanced, report.problems


def through(own: Cluster, days: int, *, dying: tuple[str, ...]) -> Sent:
    """Land the demo's data, merge and rebuild a day of it; in these steps a worker dies."""

    def step(name: str) -> "nullcontext[None]":
        return a_worker_dies_at_work(own) if name in dying else nullcontext()  # type: ignore[return-value]

    sent = Sent({}, source.events(days, keep_dates=True))
    for name in sorted({event.tenant for event in sent.events}):
        tenant = registry.create_tenant(f"{name}_{uuid.uuid4().hex[:6]}")
        dataset = "weather" if name == source.OPERATOR else "departures"
        uri = registry.publish_schema(tenant, dataset, json.dumps(source.SCHEMAS[dataset])).schema_uri
        registry.create_dataset(tenant, dataset, uri)
        sent.owners[name] = Owner(tenant)
    for half in range(HALVES):
        for name, owner in sent.owners.items():
            own_events = [event for event in sent.events if event.tenant == name]
            owner.send(*(event.payload() for event in own_events[half::HALVES]))
        with nullcontext() if half else step("drain"):
            ingest(*sent.owners.values())
    largest = sent.owners[LARGEST].tenant
    dataset_id = registry.find_dataset(largest, "departures").dataset_id
    merge = Need(largest, dataset_id, "departures", Task.MERGE, "for the test", 1, sent.busiest_day)
    with step("compaction"):
        (done,) = run(spark.shared, [merge], run_id="test", seconds=600)
    assert (done.outcome, done.after["files"]) == ("done", 1), done
    assert done.before["files"] >= HALVES
    with step("backfill"):
        rebuilt = backfill(spark.shared(), largest, "departures", sent.busiest_day, parallelism=2)
    assert rebuilt.rows
    sent.check()
    return sent


def test_events_land_once_though_a_worker_dies(own: Cluster) -> None:
    through(own, 1, dying=("drain",))


def test_events_land_once_though_a_worker_dies_in_each_step(own: Cluster) -> None:
    through(own, 7, dying=("drain", "compaction", "backfill"))


def secrets(settings: Settings) -> dict[str, bytes]:
    """What opens a service, by a name for it."""
    passwords = dict[str, SecretStr](settings.postgres.role_passwords.items()) | {
        "superuser": settings.postgres.superuser_password,
        "kafka": settings.kafka.password,
        "store": settings.object_store.secret_key,
    }
    return {name: secret.get_secret_value().encode() for name, secret in passwords.items()} | {
        "token": TOKEN.encode()
    }


def test_spark_shows_and_writes_no_secret(own: Cluster) -> None:
    """After everything that the tests before did through it."""
    contents = [*own.pages(), *own.written()]
    assert any("/environment/" in place for place, _ in contents)
    assert any("/events/" in place and b"jdbc.password" in content for place, content in contents)
    assert any(place.endswith("/stderr") for place, _ in contents), "an executor's"
    hidden = secrets(load_settings())
    assert all(hidden.values())
    shown = [(name, place) for place, content in contents for name in hidden if hidden[name] in content]
    assert shown == []
    with spark.session() as session:
        known = str(session.conf.getAll) + str(session.sql("SET").collect())
    assert [name for name, secret in hidden.items() if secret.decode() in known] == []


def test_executors_have_no_pulse_of_their_own(own: Cluster) -> None:
    def modules(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import sys

        import pyarrow as pa

        import pulse_resources

        for _ in batches:
            values = [pulse_resources.__file__, *(name for name in os.environ if name.startswith("PULSE"))]
            yield pa.record_batch([pa.array([*values, *sys.path])], ["found"])

    with spark.session() as session:
        file, *paths = session.range(1).mapInArrow(modules, "found string").toArrow().column(0).to_pylist()
    assert re.search(r"worker\d+/.*/pulse-[0-9a-f]{16}\.zip/pulse_resources/__init__\.pyc$", file)
    assert str(Path(__file__).parents[2]) not in paths


def test_the_doctor_finds_nothing_wrong(own: Cluster) -> None:
    assert [finding for finding in doctor.examine("spark") if not finding.ok] == []


def test_a_service_that_executors_do_not_reach_is_reported(own: Cluster) -> None:
    with with_settings(KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:9"):
        (finding,) = (candidate for candidate in doctor.examine("spark") if not candidate.ok)
    assert finding.check == "network", finding
    assert finding.found.startswith("kafka: ")


def test_a_server_that_is_not_set_up_is_refused(own: Cluster, tmp_path: Path) -> None:
    """By the doctor, by whoever begins a session, and by `pulse up`."""
    with own.another_server() as place, with_settings(SPARK__REMOTE=place):
        (finding,) = (candidate for candidate in doctor.examine("spark") if not candidate.ok)
        with pytest.raises(UserError) as refused, spark.session():
            pass
        elsewhere = {"PULSE_HOME": str(tmp_path)}
        done = pulse("up", "--only", "spark", environment=elsewhere, check=False)
        pulse("down", environment=elsewhere)
    assert (finding.check, finding.found) == ("server", refused.value.message)
    assert f"spark-defaults.conf and restart it: spark.sql.extensions {EXTENSIONS}" in str(finding.fix)
    assert done.returncode
