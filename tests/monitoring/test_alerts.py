"""What is wrong becomes an alert, whoever has to know is told of it, and of its end, and nothing is lost."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import dagster as dg
import pytest
from support.forked import forked
from support.here import ingest_here as ingest
from support.ingest import Owner, event, plan_batch, run_batch
from support.pipes import make_pipe
from support.topics import delete_topic
from typer.testing import CliRunner

from chaos.inside import ingest_job
from chaos.surroundings import superuser
from chaos.waiting import PATIENCE_S
from pulse_api import cli
from pulse_pipelines import pipes, registry
from pulse_pipelines.defs.alerts.checks import failing_checks
from pulse_pipelines.defs.alerts.runs import failed_runs
from pulse_pipelines.defs.alerts.sensor import alert_watch
from pulse_pipelines.defs.ingest.sensor import _give_up_dead_attempt, _run_requests, run_config
from pulse_pipelines.defs.launches import NAMED, tenant_tags
from pulse_pipelines.ingest import attempts, data_loss
from pulse_pipelines.monitoring import alerts, issues
from pulse_pipelines.monitoring.issues import Issue, Issues, Kind
from pulse_pipelines.pipes import watch
from pulse_resources import kafka, notify
from pulse_resources.errors import Transient, UserError
from pulse_resources.notify import Alert, WebhookNotifier
from pulse_resources.settings import Settings, load_settings

SECRET = "T0KEN-nobody-may-see"
NOBODY = "test_alerts:Nobody"


@dataclass
class Receiver:
    """A webhook receiver: what it got, and what it answers."""

    got: list[dict[str, Any]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    """Status codes of the next requests; then 200."""

    def alerts(self) -> list[dict[str, Any]]:
        return [alert for message in self.got for alert in message["alerts"]]


class Nobody:
    """A notifier of one's own, which fails."""

    def notify(self, due: Sequence[Alert]) -> None:
        raise RuntimeError("nobody is there")


@pytest.fixture
def receiver(stack: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A real server; it is the only notifier, and nothing is open or owed."""
    endpoint = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = endpoint.answers.pop(0) if endpoint.answers else 200
            if status == 200:
                assert self.path == f"/hooks/{SECRET}"
                endpoint.got.append(body)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"http://127.0.0.1:{server.server_port}/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/hooks/{SECRET}"
    configure(monkeypatch, notifiers='["webhook"]', webhook_url=url, webhook_attempts="2")
    monkeypatch.setattr(notify, "_BACKOFF_S", 0.01)
    with superuser() as connection:
        connection.execute("DELETE FROM alerts")
    yield endpoint
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def settings_are_read_again() -> Iterator[None]:
    yield
    load_settings.cache_clear()


def configure(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"PULSE_ALERTS__{name.upper()}", value)
    load_settings.cache_clear()


def finding(of: str = "x", severity: notify.Severity = "error") -> Issue:
    return Issue(Kind.TOPIC, of, severity, f"{of} is wrong", "Repair it", {"tenant": "acme"})


def issues_of(*wrong: Issue) -> Issues:
    return Issues(wrong, frozenset({Kind.TOPIC}))


def states(receiver: Receiver) -> list[tuple[str, str]]:
    return [(alert["key"], alert["state"]) for alert in receiver.alerts()]


# delivery ----------------------------------------------------------------------------------------


def test_an_alert_is_sent_once_while_it_lasts_and_once_when_it_ends(receiver: Receiver) -> None:
    for _ in range(3):
        alerts.record(issues_of(finding()))
        alerts.deliver()
    (alert,) = receiver.alerts()
    assert (alert["kind"], alert["severity"], alert["about"]) == ("topic", "error", {"tenant": "acme"})
    assert (alert["summary"], alert["fix"], alert["resolved_at"]) == ("x is wrong", "Repair it", None)
    for _ in range(3):
        alerts.record(issues_of())
        alerts.deliver()
    assert states(receiver) == [("topic/x", "open"), ("topic/x", "resolved")]
    alerts.record(issues_of(finding()))  # it comes back: another alert
    alerts.deliver()
    assert states(receiver)[2:] == [("topic/x", "open")]


def test_an_alert_that_lasts_is_sent_again_after_the_set_time(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts.record(issues_of(finding()))
    alerts.deliver()
    with superuser() as connection:
        connection.execute("UPDATE alert_deliveries SET notified_at = notified_at - interval '59 minutes'")
    assert alerts.deliver() == []
    with superuser() as connection:
        connection.execute("UPDATE alert_deliveries SET notified_at = notified_at - interval '2 minutes'")
    alerts.deliver()
    assert alerts.deliver() == []
    assert states(receiver) == [("topic/x", "open")] * 2


def test_an_alert_that_gets_worse_is_sent_at_once(receiver: Receiver) -> None:
    for severity in ("warning", "error", "warning"):
        alerts.record(issues_of(finding(severity=severity)))
        alerts.deliver()
    assert [alert["severity"] for alert in receiver.alerts()] == ["warning", "error"]


def test_an_alert_that_was_not_examined_is_not_resolved(receiver: Receiver) -> None:
    alerts.record(issues_of(finding()))
    alerts.record(Issues((), frozenset({Kind.RUN_FAILED})))
    assert [entry.alert.key for entry in alerts.remembered()] == ["topic/x"]


def test_alerts_for_an_unavailable_receiver_are_delivered_later(receiver: Receiver) -> None:
    receiver.answers = [500, 503] * 3
    alerts.record(issues_of(finding("a"), finding("b")))
    assert [delivery.error for delivery in alerts.deliver()] == [
        "Transient: the webhook did not take the alerts: it answered 503 [attempts=2]"
    ]
    alerts.record(issues_of(finding("b"), finding("c")))  # a ended, and nobody knows of it yet
    alerts.deliver()
    alerts.deliver()
    assert receiver.got == []
    (b,) = [entry for entry in alerts.remembered() if entry.alert.key == "topic/b"]
    assert b.deliveries["webhook"]["notified_at"] is None
    assert "503" in b.deliveries["webhook"]["error"]
    alerts.deliver()
    assert states(receiver) == [("topic/a", "resolved"), ("topic/b", "open"), ("topic/c", "open")]
    assert alerts.deliver() == []


def test_a_second_try_is_enough(receiver: Receiver) -> None:
    receiver.answers = [500]
    alerts.record(issues_of(finding()))
    assert [delivery.error for delivery in alerts.deliver()] == [None]
    assert states(receiver) == [("topic/x", "open")]


@pytest.mark.parametrize("status", [302, 404])
def test_a_permanent_error_of_the_receiver_is_not_retried(receiver: Receiver, status: int) -> None:
    receiver.answers = [status]
    with pytest.raises(Transient, match=f"it answered {status} "):
        WebhookNotifier().notify([])
    assert receiver.answers == []
    assert receiver.got == []


def test_many_alerts_come_in_few_messages(receiver: Receiver) -> None:
    alerts.record(issues_of(*(finding(f"{number:03}") for number in range(150))))
    alerts.deliver()
    assert [len(message["alerts"]) for message in receiver.got] == [100, 50]


def test_a_notifier_that_fails_costs_the_others_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [NOBODY, "no.such.module:Notifier", "webhook"]
    configure(monkeypatch, notifiers=json.dumps(names))
    alerts.record(issues_of(finding()))
    outcomes = {delivery.notifier: delivery.error for delivery in alerts.deliver()}
    assert list(outcomes) == names
    assert outcomes[NOBODY] == "RuntimeError: nobody is there"
    assert "the notifier cannot be made" in outcomes[names[1]]
    assert outcomes["webhook"] is None
    assert [delivery.notifier for delivery in alerts.deliver()] == names[:2], "the webhook has heard of it"
    assert len(receiver.got) == 1


def test_a_delivery_killed_before_its_mark_is_repeated(receiver: Receiver) -> None:
    alerts.record(issues_of(finding()))
    forked(alerts.deliver, PULSE_FAIL_POINT="alerts.before_mark").killed()
    deadline = time.monotonic() + PATIENCE_S  # until the server has seen that its client is gone
    while not alerts.deliver() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert states(receiver) == [("topic/x", "open")] * 2


def test_the_address_of_the_webhook_is_nowhere(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    output = []
    addresses = (
        f"http://127.0.0.1:1/{SECRET}",
        f"http://127.0.0.1:{SECRET}/",
        f"http://[{SECRET}/",
        f"https://{SECRET}.invalid/",
        f"http://127.0.0.1/ {SECRET}",
        f"ftp://{SECRET}/",
        f"file:///{SECRET}",
    )
    for address in addresses:
        configure(monkeypatch, webhook_url=address)
        result = CliRunner().invoke(cli.app, ["alerts", "test"])
        assert result.exit_code == 1, address
        output.append(result.output)
        alerts.record(issues_of(finding()))
        output += [str(delivery.error) for delivery in alerts.deliver()]
        output += [str(entry) for entry in alerts.remembered()]
        try:
            WebhookNotifier().notify([])
        except (Transient, UserError) as error:
            output += [repr(error), str(error.__cause__), str(load_settings().alerts)]
    output += caplog.messages
    assert len(output) >= 6 * len(addresses)
    assert not [line for line in output if SECRET in line or SECRET.lower() in line]


def test_the_log_names_kind_tenant_and_fix_of_an_alert(caplog: pytest.LogCaptureFixture) -> None:
    alert = Alert("k", "topic", "error", {"tenant": "acme"}, "it is wrong", "Repair it", *2 * (_now(),))
    notify.LogNotifier().notify([alert, Alert(**{**vars(alert), "resolved_at": _now()})])
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("ERROR", "topic [tenant=acme] it is wrong. Repair it"),
        ("WARNING", "topic [tenant=acme] resolved: it is wrong"),
    ]


def _now() -> datetime:
    return datetime.now(UTC)


# what is wrong -----------------------------------------------------------------------------------


def keys(owner: Owner, waiting: issues.Waiting, now: float) -> tuple[set[str], dict[str, Any]]:
    """What is wrong with a tenant, and the state for the next look."""
    findings, following = issues.find_issues(waiting, now)
    return {f.key for f in findings.issues if owner.tenant.slug in (*f.about.values(), *f.key.split("/"))}, (
        following
    )


def test_a_tenant_whose_oldest_event_waits_too_long_is_stale(owner: Owner) -> None:
    stale = {f"tenant_stale/{owner.tenant.slug}"}
    wrong, waiting = keys(owner, {}, 1_000)
    assert (wrong, owner.tenant.slug in waiting) == (set(), False)
    owner.send(event("a"))
    wrong, waiting = keys(owner, {}, 1_000)
    assert (wrong, waiting[owner.tenant.slug]) == (set(), (0, 1_000))
    wrong, waiting = keys(owner, waiting, 1_299)
    assert wrong == set()
    wrong, waiting = keys(owner, waiting, 1_300)
    assert wrong == stale
    ingest(owner)
    wrong, waiting = keys(owner, waiting, 1_301)
    assert (wrong, owner.tenant.slug in waiting) == (set(), False)


def test_a_tenant_whose_events_settle_is_not_stale_however_many_wait(owner: Owner) -> None:
    owner.send(event("a"))
    _, waiting = keys(owner, {}, 1_000)
    ingest(owner)
    owner.send(event("b"))
    wrong, waiting = keys(owner, waiting, 2_000)
    assert (wrong, waiting[owner.tenant.slug]) == (set(), (1, 2_000))
    wrong, waiting = keys(owner, waiting, 1_500)  # the clock was set back
    assert (wrong, waiting[owner.tenant.slug]) == (set(), (1, 1_500))


def test_a_stuck_batch_names_its_tenants_until_it_is_settled(owner: Owner) -> None:
    owner.send(event("a"))
    batch = plan_batch([owner])
    for attempt in range(1, load_settings().ingest.max_attempts + 1):
        attempts.next_attempt(batch, attempt, "no\nluck")
    (stuck,) = [f for f in issues.find_issues({}, 0)[0].issues if f.of == batch]
    assert (stuck.kind, stuck.severity, stuck.about["tenants"]) == ("batch_stuck", "error", owner.tenant.slug)
    assert stuck.summary == f"batch {batch} is stuck after 5 attempts: no luck"
    assert stuck.fix.endswith(f"pulse batch retry {batch}")
    for attempt in (6, 7):  # twice, its run dies without a word
        attempts.unstick(batch)
        with superuser() as connection:
            connection.execute("UPDATE ingest_batches SET state = 'running' WHERE batch_id = %s", [batch])
        (mine,) = [entry for entry in attempts.open_batches() if entry.batch_id == batch]
        _give_up_dead_attempt(dg.build_sensor_context(), mine)
        (stuck,) = [f for f in issues.find_issues({}, 0)[0].issues if f.of == batch]
        died = "the run died: its lease on the batch is gone; before that: no luck"
        assert stuck.summary == f"batch {batch} is stuck after {attempt} attempts: {died}"
    attempts.unstick(batch)
    attempts.next_attempt(batch, 8, "the disk is full")
    (error,) = [entry.last_error for entry in attempts.open_batches() if entry.batch_id == batch]
    assert error == "the disk is full", "what is known now counts"
    attempts.unstick(batch)
    run_batch(batch, 9)
    assert batch not in {f.of for f in issues.find_issues({}, 0)[0].issues}


def test_a_topic_that_was_recreated_is_an_alert(owner: Owner) -> None:
    owner.send(event("a"))
    ingest(owner)
    delete_topic(owner)
    kafka.create_topics([owner.tenant.topic])
    try:
        wrong, _ = keys(owner, {}, 0)
        assert wrong == {f"topic/{owner.tenant.slug}/0"}
    finally:
        data_loss.accept(owner.tenant, data_loss.find_losses(owner.tenant))
    assert keys(owner, {}, 0)[0] == set()


def test_dead_letters_that_stay_unpublished_are_an_alert(owner: Owner) -> None:
    with superuser() as connection:
        owed = "INSERT INTO dead_letter_outbox VALUES (%s, 'some-batch', now() - interval '6 minutes')"
        connection.execute(owed, [owner.tenant.tenant_id])
        assert keys(owner, {}, 0)[0] == {f"outbox_overdue/{owner.tenant.slug}"}
        connection.execute("DELETE FROM dead_letter_outbox WHERE tenant_id = %s", [owner.tenant.tenant_id])
    assert keys(owner, {}, 0)[0] == set()


def test_a_broker_that_does_not_answer_is_an_alert_and_resolves_nothing(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(kafka, "TIMEOUT_S", 1.0)
    for cached in (load_settings, kafka.admin):
        cached.cache_clear()
    try:
        findings, waiting = issues.find_issues({owner.tenant.slug: (3, 5.0)}, 10.0)
    finally:
        monkeypatch.undo()
        for cached in (load_settings, kafka.admin):
            cached.cache_clear()
    assert "unreachable/kafka" in {f.key for f in findings.issues}
    assert not findings.checked_kinds & {Kind.TOPIC, Kind.TENANT_STALE}
    assert waiting == {owner.tenant.slug: (3, 5.0)}, "it waits on"


# Dagster -----------------------------------------------------------------------------------------


@dg.op
def fails(context: dg.OpExecutionContext) -> None:
    if context.op_execution_context.run.tags.get("go") != "well":
        raise ValueError("the disk is full")


@dg.job(tags={"pulse/job": "nightly"})
def nightly() -> None:
    fails()


def test_a_failed_run_is_an_alert_until_the_same_work_succeeds(stack: Settings) -> None:
    def wrong() -> list[tuple[str, str]]:
        return [(f.of, f.summary) for f in failed_runs(instance, [])]

    with dg.DagsterInstance.ephemeral() as instance:
        for tenant in ("acme", "zeta"):
            tags = {"pulse/tenant": tenant}
            nightly.execute_in_process(instance=instance, tags=tags, raise_on_error=False)
        summary = "a run of nightly failed: ValueError: the disk is full"
        assert sorted(wrong()) == [("nightly/acme", summary), ("nightly/zeta", summary)]
        time.sleep(0.01)
        nightly.execute_in_process(instance=instance, tags={"pulse/tenant": "acme", "go": "well"})
        assert wrong() == [("nightly/zeta", summary)]
        (later,) = failed_runs(instance, [])
        assert (later.severity, later.about["tenant"], later.about["job"]) == ("error", "zeta", "nightly")
        assert later.about["run"] in later.fix
        assert list(failed_runs(instance, [], _now() + timedelta(hours=24, minutes=1))) == []


def test_failed_runs_of_deleted_pipes_and_datasets_raise_no_alert(owner: Owner) -> None:
    of_tenant, days = dg.DynamicPartitionsDefinition(name="of"), dg.StaticPartitionsDefinition(["2026-11-19"])

    def fails() -> None:
        raise ValueError("the disk is full")

    paths = (["pipes", "planes"], ["lake", "orders"], ["curated", "orders", "daily"])
    grids = (of_tenant, *2 * [dg.MultiPartitionsDefinition({"day": days, "tenant": of_tenant})])
    assets = [dg.asset(fails, key=path, partitions_def=grid) for path, grid in zip(paths, grids, strict=True)]
    slug = owner.tenant.slug
    jobs = [
        dg.define_asset_job("pipes", [assets[0].key]),
        dg.define_asset_job("days", [day_asset.key for day_asset in assets[1:]]),
    ]
    definitions = dg.Definitions(assets=assets, jobs=jobs)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("of", [slug])

        def wrong() -> list[str]:
            return sorted(failure.of.split("/")[2] for failure in failed_runs(instance, []))

        def fail(asset: dg.AssetsDefinition) -> None:
            several = asset.key.path[0] != "pipes"
            key = dg.MultiPartitionKey({"day": "2026-11-19", "tenant": slug}) if several else slug
            job = definitions.resolve_job_def("days" if several else "pipes")
            job.execute_in_process(
                instance=instance, partition_key=key, asset_selection=[asset.key], raise_on_error=False
            )

        make_pipe(owner, "planes")
        for asset in assets:
            fail(asset)
        assert wrong() == ["curated", "lake", "pipes"]
        pipes.delete(owner.tenant, "planes")
        assert wrong() == ["curated", "lake"]
        make_pipe(owner, "planes")
        assert wrong() == ["curated", "lake"], "it was another pipe of this name"
        fail(assets[0])
        assert wrong() == ["curated", "lake", "pipes"]
        registry.delete_dataset(owner.tenant, "orders")
        assert wrong() == ["pipes"]


def test_a_pipe_that_needs_no_watch_takes_no_lock(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[str] = []
    monkeypatch.setattr(watch, "watch_one", lambda pipe: watched.append(pipe.name))
    make_pipe(owner, "planes")
    mine = [pipe for pipe in pipes.list_all_pipes() if pipe.tenant == owner.tenant]
    assert [error for _, error in watch.watch(mine)] == [None]
    assert watched == []


def test_a_failing_check_raises_no_alert_once_the_dataset_is_deleted(
    new_owner: Callable[[], Owner],
) -> None:
    mine, other = new_owner(), new_owner()
    key = dg.AssetCheckKey(dg.AssetKey(["lake", "orders"]), "healthy")
    faults = [
        dg.TableRecord({"tenant": owner.tenant.slug, "problem": "foreign rows"}) for owner in (mine, other)
    ]
    with dg.DagsterInstance.ephemeral() as instance:
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=key.asset_key,
                check_name=key.name,
                passed=False,
                metadata={"at_fault": dg.MetadataValue.table(faults)},
            )
        )
        registry.delete_dataset(other.tenant, "orders")
        assert len(list(failing_checks(instance, {key}.__contains__))) == 1, "one of them has it"
        registry.delete_dataset(mine.tenant, "orders")
        assert list(failing_checks(instance, {key}.__contains__)) == []


def test_a_failed_run_of_a_batch_is_a_warning_until_it_is_settled_or_stuck(owner: Owner) -> None:
    def wrong() -> list[Issue]:
        return list(failed_runs(instance, attempts.open_batches()))

    owner.send(event("a"))
    batch = plan_batch([owner])
    (request,) = [r for r in _run_requests(attempts.open_batches()) if r.tags["pulse/batch"] == batch]
    assert request.tags[f"pulse.tenant/{owner.tenant.slug}"] == "yes"
    with dg.DagsterInstance.ephemeral() as instance:
        ingest_job().execute_in_process(
            run_config=run_config(batch, 9), tags=request.tags, instance=instance, raise_on_error=False
        )  # fenced: there is no attempt 9
        attempts.next_attempt(batch, 1, "no luck")
        (warning,) = wrong()
        assert (warning.severity, warning.about["batch"]) == ("warning", batch)
        assert warning.summary == f"batch {batch}: a run failed: no luck"
        with superuser() as connection:
            state = "UPDATE ingest_batches SET state = %s WHERE batch_id = %s"
            connection.execute(state, ["stuck", batch])
            assert wrong() == []
            connection.execute(state, ["planned", batch])
        assert len(wrong()) == 1
        run_batch(batch, 2)
        assert wrong() == []


def test_tags_name_the_tenants_of_a_run_while_they_are_few() -> None:
    assert tenant_tags(["b", "a"]) == {"pulse.tenant/a": "yes", "pulse.tenant/b": "yes"}
    longest = "x" * 63
    assert dg.RunRequest(tags=tenant_tags([longest])).tags == {f"pulse.tenant/{longest}": "yes"}
    many = [f"t{number}" for number in range(NAMED + 1)]
    assert tenant_tags(many) == {"pulse/tenants": "4: t0, t1, t2, ..."}


def test_the_sensor_raises_delivers_and_resolves_an_alert(owner: Owner, receiver: Receiver) -> None:
    """A check that fails and then passes, through a real instance and the definitions that Dagster runs."""
    from pulse_pipelines.definitions import defs

    definitions = defs()
    key = next(iter(definitions.get_repository_def().asset_graph.asset_check_keys))
    about = f"check_failing/{key.asset_key.to_user_string()}/{key.name}"
    with dg.DagsterInstance.ephemeral() as instance:

        def tick(cursor: str | None = None) -> str:
            context = dg.build_sensor_context(instance=instance, cursor=cursor, definitions=definitions)
            result = alert_watch(context)
            assert isinstance(result, dg.SensorResult)
            assert result.cursor is not None
            return result.cursor

        def evaluate(*, passed: bool) -> None:
            instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(
                    asset_key=key.asset_key,
                    check_name=key.name,
                    passed=passed,
                    severity=dg.AssetCheckSeverity.WARN,
                    description=None if passed else "2 rows are foreign",
                )
            )

        evaluate(passed=False)
        owner.send(event("a"))
        cursor = tick()
        assert json.loads(cursor)[owner.tenant.slug][0] == 0
        sent = {alert["key"]: alert for alert in receiver.alerts()}
        assert sent[about]["summary"] == (
            f"the check {key.name} of {key.asset_key.to_user_string()} fails: 2 rows are foreign"
        )
        assert sent[about]["severity"] == "warning"
        tick(cursor)
        assert [alert["state"] for alert in receiver.alerts() if alert["key"] == about] == ["open"]
        evaluate(passed=True)
        assert list(failing_checks(instance, {key}.__contains__)) == []
        tick(cursor)
        states = [alert["state"] for alert in receiver.alerts() if alert["key"] == about]
        assert states == ["open", "resolved"]
    ingest(owner)


def test_checks_that_pass_are_not_read(stack: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [dg.AssetCheckKey(dg.AssetKey(["lake", f"d{number}"]), "healthy") for number in range(5)]
    read: list[dg.AssetCheckKey] = []
    with dg.DagsterInstance.ephemeral() as instance:
        storage: Any = instance.event_log_storage
        latest = storage.get_latest_asset_check_execution_by_key
        monkeypatch.setattr(
            storage,
            "get_latest_asset_check_execution_by_key",
            lambda check_keys: (read.extend(check_keys), latest(check_keys))[1],
        )
        for key in keys:
            for passed in (False, key is not keys[0]):
                evaluation = dg.AssetCheckEvaluation(
                    asset_key=key.asset_key, check_name=key.name, passed=passed
                )
                instance.report_runless_asset_event(evaluation)
        assert [issue.of for issue in failing_checks(instance, lambda _: True)] == ["lake/d0/healthy"]
        assert read == keys[:1]


def test_a_failing_check_is_still_failing_while_it_runs_again(stack: Settings) -> None:
    asset = dg.AssetSpec("orders")
    failures: list[list[str]] = []

    @dg.asset_check(asset=asset.key)
    def healthy(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        keys = {dg.AssetCheckKey(asset.key, "healthy")}
        failures.append([finding.of for finding in failing_checks(context.instance, keys.__contains__)])
        return dg.AssetCheckResult(passed=len(failures) == 3)

    job = dg.define_asset_job("look", dg.AssetSelection.all_asset_checks())
    definitions = dg.Definitions(assets=[asset], asset_checks=[healthy], jobs=[job])
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(4):
            definitions.resolve_job_def("look").execute_in_process(instance=instance)
    failing = ["orders/healthy"]
    assert failures == [[], failing, failing, []]


def test_the_sensor_s_description_and_state() -> None:
    assert alert_watch.default_status is dg.DefaultSensorStatus.RUNNING
    assert "pulse alerts" in (alert_watch.description or "")


# the command line --------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(cli.app, ["alerts", *arguments])
    return result.exit_code, result.stdout


def test_the_command_line_lists_open_and_resolved_alerts(receiver: Receiver) -> None:
    alerts.record(issues_of(finding("old")))
    alerts.record(issues_of(finding("new")))
    alerts.deliver()
    code, shown = run("--json")
    (alert,) = json.loads(shown)
    assert (code, alert["key"], alert["state"]) == (0, "topic/new", "open")
    assert alert["told"]["webhook"]["notified_at"]
    history = [(alert["key"], alert["state"]) for alert in json.loads(run("--all", "--json")[1])]
    assert history == [("topic/new", "open"), ("topic/old", "resolved")]
    assert "new is wrong" in run()[1]


def test_a_test_alert_reports_the_result_of_each_notifier(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("test")[0] == 0
    assert [alert["kind"] for alert in receiver.alerts()] == ["test"]
    configure(monkeypatch, notifiers=json.dumps(["webhook", NOBODY]))
    code, shown = run("test", "--json")
    assert code == 1
    assert json.loads(shown) == [
        {"notifier": "webhook", "error": None},
        {"notifier": NOBODY, "error": "RuntimeError: nobody is there"},
    ]
    assert alerts.remembered(everything=True) == [], "a test leaves no trace"


def test_history_is_kept_for_a_while_only(receiver: Receiver) -> None:
    alerts.record(issues_of(finding()))
    alerts.record(issues_of())
    with superuser() as connection:
        connection.execute("UPDATE alerts SET resolved_at = now() - interval '91 days'")
    alerts.record(issues_of())
    assert alerts.remembered(everything=True) == []
