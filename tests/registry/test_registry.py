"""The registry: tenants, immutable schemas, datasets that exist wholly or not at all, and its commands."""

import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
from pyiceberg.table import Table
from support.here import ingest_here as ingest
from support.ingest import SCHEMA, Owner, event, make_owner
from typer.testing import CliRunner

from chaos.surroundings import pulse, superuser, with_settings
from pulse_api import cli
from pulse_api.cli.parts import imported
from pulse_pipelines import registry
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.schemas.columns import PHYSICAL
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import datasets, keys, quotas, tenant_view
from pulse_pipelines.states import declared_states
from pulse_pipelines.tables import dataset_rows
from pulse_resources import iceberg, kafka, object_store, postgres
from pulse_resources.errors import AlreadyExists, NotFound, QuotaExceeded, Transient, UserError
from pulse_resources.settings import Settings
from pulse_resources.settings.service_settings import Role

FIELDS = {
    "country": "string",
    "amount": "double",
    "count": "long",
    "active": "boolean",
    "signup_at": "timestamptz",
    "born": "date",
    "anything": "string",
    "tags": "list<string>",
    "data_id": "string",
}
WIDE = {
    "type": "object",
    "required": ["country"],
    "properties": {
        "country": {"type": "string"},
        "amount": {"type": "number"},
        "count": {"type": "integer"},
        "active": {"type": ["boolean", "null"]},
        "signup_at": {"type": "string", "format": "date-time"},
        "born": {"type": "string", "format": "date"},
        "anything": {},
        "tags": {"type": "array", "items": {"type": "string"}},
        "id": {"type": "string"},
        "address": {"type": "object", "properties": {"zip": {"type": "string"}, "no": {"type": "integer"}}},
        "not-a-name": {"type": "string"},
    },
}


def slug() -> str:
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="module")
def tenant(stack: Settings) -> Tenant:
    return registry.create_tenant(slug())


@pytest.fixture(scope="module")
def uri(tenant: Tenant) -> str:
    return registry.publish_schema(tenant, "wide", json.dumps(WIDE)).schema_uri


def load(tenant: Tenant, dataset: str) -> Table:
    location = registry.current_table(tenant, dataset).metadata_location
    return iceberg.load_table((tenant.namespace, dataset), location)


# tenants -----------------------------------------------------------------------------------------


def test_a_tenant_has_its_topics_and_positions_from_the_start(tenant: Tenant, stack: Settings) -> None:
    assert registry.find_tenant(tenant.slug) == tenant
    assert tenant in registry.list_tenants()
    topics = {tenant.topic, tenant.dead_letter_topic}
    assert topics == {f"pulse.{tenant.tenant_id.hex}.events", f"pulse.{tenant.tenant_id.hex}.events.dlq"}
    assert kafka.topic_ids(topics).keys() == topics
    partitions = range(stack.kafka.partitions_per_topic)
    assert kafka.offsets([(tenant.topic, p) for p in partitions], "latest") == {
        (tenant.topic, p): 0 for p in partitions
    }
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        rows = connection.execute("SELECT partition, settled_offset FROM ingest_positions").fetchall()
    assert sorted(rows) == [(p, 0) for p in partitions]


def test_a_tenant_slug_is_taken_once(tenant: Tenant) -> None:
    with pytest.raises(AlreadyExists, match=tenant.slug):
        registry.create_tenant(tenant.slug)
    assert registry.find_tenant(tenant.slug) == tenant


@pytest.mark.parametrize("wrong", ["", "A", "a|b", "a-b", "1a", "a.b", "a/b", "ä", "a" * 64, "a\n", "../a"])
def test_a_slug_that_cannot_name_everything_is_refused(stack: Settings, wrong: str) -> None:
    with pytest.raises(UserError, match="slug"):
        registry.create_tenant(wrong)


@pytest.mark.parametrize(
    "where", ["kafka.create_topics", "store_keys.vending_accounts.ensure_tenant_accounts"]
)
def test_a_tenant_without_topics_or_an_account_is_not_registered(
    stack: Settings, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    name = slug()

    def refuse(*_: object) -> None:
        raise Transient("it is away")

    monkeypatch.setattr(f"pulse_resources.{where}", refuse)
    with pytest.raises(Transient):
        registry.create_tenant(name)
    with pytest.raises(NotFound, match=name):
        registry.find_tenant(name)


# schemas -----------------------------------------------------------------------------------------


def test_publishing_counts_versions_and_reuses_equal_schemas(tenant: Tenant) -> None:
    one, two = json.dumps(SCHEMA), json.dumps(SCHEMA | {"title": "other"})
    name = slug()
    addresses = [registry.publish_schema(tenant, name, text).schema_uri for text in (one, two, one, two)]
    first, second = (f"pulse://{tenant.slug}/{name}/{n}" for n in (1, 2))
    assert addresses == [first, second, first, second]
    assert registry.publish_schema(tenant, f"{name}b", one).schema_uri == f"pulse://{tenant.slug}/{name}b/1"


def test_publishers_at_once_make_neither_gaps_nor_twins(tenant: Tenant) -> None:
    name = slug()
    texts = [json.dumps(SCHEMA | {"title": f"title {n % 4}"}) for n in range(8)]
    with ThreadPoolExecutor(8) as threads:
        published = threads.map(lambda text: registry.publish_schema(tenant, name, text), texts)
        addresses = [schema.schema_uri for schema in published]
    assert sorted(set(addresses)) == [f"pulse://{tenant.slug}/{name}/{n}" for n in (1, 2, 3, 4)]
    assert addresses[:4] == addresses[4:], "the same document got two addresses"
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        query = "SELECT version FROM pdm_schemas WHERE name = %s ORDER BY version"
        assert connection.execute(query, [name]).fetchall() == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize("role", get_args(Role))
@pytest.mark.parametrize(
    "change",
    ["UPDATE {} SET document = '{{}}'", "DELETE FROM {}", "TRUNCATE {} CASCADE"],
)
def test_a_published_schema_is_immutable_for_every_role(
    tenant: Tenant, uri: str, role: Role, change: str
) -> None:
    with (
        pytest.raises(psycopg.errors.InsufficientPrivilege),
        postgres.tenant_transaction(role, tenant.tenant_id) as connection,
    ):
        connection.execute(change.format("public.pdm_schemas"))
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        assert registry.find_schema(connection, tenant, uri).document == json.dumps(WIDE)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ('{"type": "array"}', "object"),
        ('{"type": 1}', "at #/type: 1 is not a type"),
        ('{"type": "object", "properties": {"a": {"$ref": "https://example.com/a"}}}', "example.com"),
        ('{"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}', "passwd"),
        ('{"type": "object", "properties": {"a": {}, "A": {}}}', "share the column"),
        (json.dumps({"type": "object", "title": "x" * 600_000}), "limit"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(tenant: Tenant, document: str, says: str) -> None:
    name = slug()
    with pytest.raises(UserError, match=says):
        registry.publish_schema(tenant, name, document)
    with pytest.raises(NotFound):
        registry.create_dataset(tenant, name, f"pulse://{tenant.slug}/{name}/1")


# datasets ----------------------------------------------------------------------------------------


def traces(tenant: Tenant) -> dict[str, list[tuple[Any, ...]]]:
    """What there is of the tenant's datasets in Postgres, whoever may see it."""
    queries = {
        "datasets": ("SELECT slug FROM pdm_datasets WHERE tenant_id = %s", tenant.tenant_id),
        "tables": (
            "SELECT table_name FROM iceberg_catalog.iceberg_tables WHERE table_namespace = %s",
            tenant.namespace,
        ),
        "namespaces": (
            "SELECT property_key FROM iceberg_catalog.iceberg_namespace_properties WHERE namespace = %s",
            tenant.namespace,
        ),
    }
    with superuser() as connection:
        return {
            name: connection.execute(query, [value]).fetchall() for name, (query, value) in queries.items()
        }


def test_a_dataset_is_its_row_its_namespace_and_its_table(tenant: Tenant, uri: str, stack: Settings) -> None:
    dataset = registry.create_dataset(tenant, "wide", uri, "Wide")
    assert registry.find_dataset(tenant, "wide") == dataset
    assert dataset in registry.list_datasets(tenant)
    assert (dataset.name, dataset.schema_uri, dataset.schema_version) == ("Wide", uri, 1)
    assert tenant in registry.family_owners("wide")
    (family,) = (known for known in registry.list_families() if known.slug == "wide")
    assert dataset.dataset_id in {member.dataset_id for member in family.members}
    rows = traces(tenant)
    assert ("wide",) in rows["datasets"]
    assert ("wide",) in rows["tables"]
    assert rows["namespaces"] == [("exists",)]

    table = load(tenant, "wide")
    assert table.format_version == 2
    dataset = registry.find_dataset(tenant, "wide")
    assert table.location() == tenant.table_location(stack.object_store.bucket, "wide", dataset.dataset_id)
    assert table.metadata_location.startswith(f"{table.location()}/metadata/")
    assert table.properties["pulse.tenant"] == tenant.slug
    assert table.properties["pulse.dataset-id"] == str(dataset.dataset_id)
    (day,) = table.spec().fields
    assert (day.name, str(day.transform)) == ("timestamp_day", "day")
    assert table.schema().find_column_name(day.source_id) == "timestamp"
    assert table.schema().model_dump_json() == dataset.table_schema, "tasks type rows by this copy"


def test_the_table_has_physical_columns_then_declared_ones_then_the_rest(tenant: Tenant, uri: str) -> None:
    registry.create_dataset(tenant, "columns", uri)
    fields = {field.name: field for field in load(tenant, "columns").schema().fields}
    assert list(fields) == [*PHYSICAL[:-1], *list(FIELDS)[:-1], "data_id", "address", "_extra"]
    required = {"id", "tenant_id", "dataset_id", "timestamp", "ingested_at", "schema_version"}
    assert {n for n, f in fields.items() if f.required} == required | {
        "_batch",
        "_kafka_partition",
        "_offset",
    }
    assert all(fields[name].doc for name in PHYSICAL), "an analyst reads what a column means"
    assert {name: str(fields[name].field_type) for name in FIELDS} == FIELDS
    physical = {
        "timestamp": "timestamptz",
        "_offset": "long",
        "_kafka_partition": "int",
        "schema_version": "int",
    }
    assert {name: str(fields[name].field_type) for name in physical} == physical
    address = {member.name: str(member.field_type) for member in fields["address"].field_type.fields}
    assert address == {"zip": "string", "no": "long"}
    ids = [field.field_id for field in fields.values()]
    assert len(set(ids)) == len(ids)


def test_an_unknown_slug_is_looked_up_without_the_schemas(
    tenant: Tenant, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.create_dataset(tenant, "orders", uri)
    monkeypatch.setattr(dataset_rows, "OF_TENANT", "the schemas of all datasets")
    with pytest.raises(NotFound) as refused:
        registry.find_dataset(tenant, "ordrs")
    assert refused.value.fix == "Did you mean orders?"


def test_an_object_store_that_fails_leaves_nothing(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = registry.create_tenant(slug())
    address = registry.publish_schema(fresh, "wide", json.dumps(WIDE)).schema_uri

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(iceberg, "write_new_table", fail)
        with pytest.raises(Transient, match="the disk is full"):
            registry.create_dataset(fresh, "wide", address)
    assert traces(fresh) == {"datasets": [], "tables": [], "namespaces": []}
    assert registry.create_dataset(fresh, "wide", address).slug == "wide", "the slug is still free"


def test_a_catalog_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, stack: Settings) -> None:
    fresh = registry.create_tenant(slug())
    address = registry.publish_schema(fresh, "wide", json.dumps(WIDE)).schema_uri
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "INSERT_TABLE", "SELECT %s::text, %s::text, %s::text, %s::text, 1 / 0")
        with pytest.raises(psycopg.errors.DivisionByZero):
            registry.create_dataset(fresh, "wide", address)
    assert traces(fresh) == {"datasets": [], "tables": [], "namespaces": []}


def test_a_slug_that_is_taken_changes_nothing(tenant: Tenant, uri: str) -> None:
    first = registry.create_dataset(tenant, "taken", uri)
    before, location = traces(tenant), load(tenant, "taken").metadata_location
    with pytest.raises(AlreadyExists, match="taken"):
        registry.create_dataset(tenant, "taken", uri)
    assert traces(tenant) == before
    assert registry.find_dataset(tenant, "taken") == first
    assert load(tenant, "taken").metadata_location == location


def test_of_two_creations_at_once_one_wins(tenant: Tenant, uri: str) -> None:
    def create(name: str) -> str:
        try:
            return str(registry.create_dataset(tenant, "race", uri, name).dataset_id)
        except AlreadyExists:
            return "exists"

    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(create, ("left", "right")))
    (winner,) = set(outcomes) - {"exists"}
    assert outcomes.count("exists") == 1
    assert str(registry.find_dataset(tenant, "race").dataset_id) == winner
    assert load(tenant, "race").properties["pulse.dataset-id"] == winner


@pytest.mark.parametrize(
    "wrong", ["orders", "pulse://a/b", "pulse://a/b/0", "pulse://a/b/1/2", "http://a/b/1"]
)
def test_an_invalid_schema_address_is_refused(tenant: Tenant, wrong: str) -> None:
    with pytest.raises(UserError, match="schema address"):
        registry.create_dataset(tenant, "wrong", wrong)


# commands ----------------------------------------------------------------------------------------

Outcome = tuple[int, str, str]
Command = Callable[..., Outcome]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a `pulse` command in this process, through its entry point: exit code, output, errors."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr("sys.argv", ["pulse", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        code = 0 if end.value.code is None else end.value.code
        assert isinstance(code, int)
        return code, captured.out, captured.err

    return run


def test_a_tenant_s_first_steps(stack: Settings, command: Command, tmp_path: Path) -> None:
    name, file = slug(), tmp_path / "orders.json"
    file.write_text(json.dumps(SCHEMA))
    code, out, _ = command("tenant", "create", name)
    tenant = registry.find_tenant(name)
    assert (code, str(tenant.tenant_id) in out, tenant.topic in out) == (0, True, True)
    assert name in command("tenant", "list")[1]
    assert command("schema", "publish", name, "orders", str(file)) == (0, f"pulse://{name}/orders/1\n", "")
    again = command("schema", "publish", name, "orders", str(file))
    assert again[:2] == (0, f"pulse://{name}/orders/1\n")
    code, out, _ = command("dataset", "create", name, "orders", f"pulse://{name}/orders/1")
    assert (code, f"{tenant.namespace}.orders" in out) == (0, True)
    code, out, _ = command("dataset", "list", name)
    assert (code, "orders" in out, f"pulse://{name}/orders/1" in out) == (0, True, True)
    code, out, _ = command("preview", name, "orders")
    assert (code, "no rows yet" in out) == (0, True)
    code, out, _ = command("reconcile", name)
    assert (code, name in out, "yes" in out) == (0, True, True)


def test_preview_and_reconcile_show_the_landed_events(stack: Settings, command: Command) -> None:
    owner = make_owner()
    owner.send(*(event(f"event-{n}", count=n) for n in range(3)), event("event-0"), b"not json")
    ingest(owner)
    code, out, _ = command("preview", owner.tenant.slug, "orders", "--limit", "2")
    assert code == 0
    assert [f"event-{n}" in out for n in range(3)] == [True, True, False], "the limit holds"
    assert str(owner.tenant.tenant_id) not in out, "what every row says is left out"
    code, out, _ = command("reconcile", owner.tenant.slug, "--json")
    report = json.loads(out)
    assert (code, report["balanced"]) == (0, True)
    (reported,) = report["tenants"]
    assert reported == {
        "tenant": owner.tenant.slug,
        "drained": 5,
        "landed": 3,
        "duplicates": 1,
        "dead_letters": 1,
        "problems": [],
        "balanced": True,
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("tenant create {tenant}", "a tenant with this slug exists"),
        ("tenant create Not-A-Slug", "not a valid tenant slug"),
        (
            "schema publish {tenant} orders {folder}/absent.json",
            "absent.json: No such file or directory. Name",
        ),
        ("schema publish {tenant} orders {folder}", "cannot read the schema"),
        ("schema publish {tenant} orders {folder}/binary.json", "is not UTF-8"),
        ("schema publish {tenant} orders {folder}/broken.json", "JSON"),
        ("schema publish {tenant} Orders {folder}/good.json", "not a valid schema slug"),
        ("schema publish nobody orders {folder}/good.json", "pulse tenant create nobody"),
        ("dataset create nobody orders pulse://nobody/orders/1", "pulse tenant create nobody"),
        ("dataset create {tenant} orders pulse://{tenant}/absent/1", "Publish this version first"),
        ("dataset create {tenant} orders nonsense", "pulse://<tenant>/<name>/<version>"),
        ("dataset create {tenant} Orders {uri}", "not a valid dataset slug"),
        ("dataset list nobody", "no such tenant"),
        ("preview nobody orders", "no such tenant"),
        ("preview {tenant} absent", "no such dataset"),
        ("preview {tenant} absent --limit 0", "--limit"),
        ("preview {tenant}", "Missing argument"),
        ("reconcile nobody", "no such tenant"),
        (
            "batch retry nothing",
            "no batch with this id is stuck [batch=nothing]. List the batches: pulse batch list",
        ),
        ("dlq show {tenant} 9-9", "List the dead letters: pulse dlq list {tenant} --state all"),
        ("key revoke {tenant} 000000000000", "List the keys: pulse key list {tenant}"),
        ("pipe status {tenant} absent", "List the pipes: pulse pipe list {tenant}"),
        ("pipe run {tenant} absent", "List the pipes: pulse pipe list {tenant}"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_wrong_request_has_a_specific_error_and_exits_with_2(
    tenant: Tenant, uri: str, command: Command, tmp_path: Path, arguments: str, says: str
) -> None:
    (tmp_path / "good.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "binary.json").write_bytes(b"\x80\x00")
    filled = [a.format(tenant=tenant.slug, uri=uri, folder=tmp_path) for a in arguments.split()]
    code, out, errors = command(*filled)
    assert (code, out) == (2, "")
    assert says.format(tenant=tenant.slug) in errors


def test_an_unreadable_table_is_named_and_exits_with_1(stack: Settings, command: Command) -> None:
    owner = make_owner()
    name, missing = (owner.tenant.namespace, "orders"), "s3://pulse/gone.metadata.json"
    location = registry.current_table(owner.tenant, "orders").metadata_location
    with postgres.transaction("pulse_catalog") as connection:
        assert iceberg.swap(connection, name, location, missing)
    code, _, errors = command("preview", owner.tenant.slug, "orders")
    assert (code, "gone" in errors) == (1, True)
    code, out, _ = command("reconcile", owner.tenant.slug)
    assert (code, "unreadable" in out, "gone" in out) == (1, True, True)
    with postgres.transaction("pulse_catalog") as connection:
        connection.execute("DELETE FROM iceberg_tables WHERE table_namespace = %s", [owner.tenant.namespace])
    code, _, errors = command("preview", owner.tenant.slug, "orders")
    assert (code, "not in the catalog" in errors) == (1, True)


def test_an_object_store_that_does_not_answer_is_named(
    stack: Settings, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = make_owner()
    away = stack.object_store.model_copy(update={"endpoint": "http://127.0.0.1:1"})
    elsewhere = stack.model_copy(update={"object_store": away})
    for module in (
        "pulse_pipelines.query.duckdb_pool",
        "pulse_pipelines.query.snapshots",
        "pulse_resources.object_store",
    ):
        monkeypatch.setattr(f"{module}.load_settings", lambda: elsewhere)
    object_store.file_system.cache_clear()
    try:
        for arguments in (("preview", owner.tenant.slug, "orders"), ("reconcile", owner.tenant.slug)):
            code, _, errors = command(*arguments)
            assert (code, "does not answer" in errors, "127.0.0.1:1" in errors) == (1, True, True)
    finally:
        object_store.file_system.cache_clear()


def test_the_installed_command_ends_with_these_codes(tenant: Tenant) -> None:
    done = pulse("preview", tenant.slug, "absent", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no such dataset")


def commands(group: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every command and group below, by its words."""
    paths = {path: group}
    for name, part in getattr(group, "commands", {}).items():
        paths |= commands(part, (*path, name))
    return paths


COMMANDS = commands(imported(cli.app))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...]) -> None:
    part = COMMANDS[path]
    assert part.help
    shown = CliRunner().invoke(cli.app, [*path, "--help"])
    assert shown.exit_code == 0
    first_words = " ".join(part.help.split()[:4]).replace("`", "")
    assert first_words in " ".join(shown.output.replace("│", " ").replace("`", "").split())
    silent = [p.name for p in part.params if not getattr(p, "hidden", False) and not getattr(p, "help", None)]
    assert not silent
    for name, below in getattr(part, "commands", {}).items():
        assert below.hidden or name in shown.output


READS: dict[str, Callable[[Tenant], object]] = {
    "view": lambda tenant: tenant_view.load_view(tenant.tenant_id),
    "view of the catalog": lambda tenant: tenant_view.load_lake_view(tenant.tenant_id),
    "keys": keys.list_keys,
    "datasets": registry.list_datasets,
    "a dataset": lambda tenant: registry.find_dataset(tenant, "orders"),
    "schemas": registry.list_schemas,
    "usage": quotas.find_usage,
    "a table": lambda tenant: registry.current_table(tenant, "orders"),
    "a state": lambda tenant: declared_states.find(tenant, "orders"),
}


@pytest.fixture(scope="module")
def unlike(stack: Settings) -> list[Tenant]:
    """Two tenants of which all that is read differs."""
    tenants = [make_owner().tenant for _ in range(2)]
    for number, tenant in enumerate(tenants):
        for name in ["reader", "writer"][: number + 1]:
            keys.issue_key(tenant, name, [KeyScope.READ])
            registry.create_dataset(tenant, f"of_the_{name}", f"pulse://{tenant.slug}/orders/1")
        declared_states.declare(tenant, "orders", "country", 10 + number)
    return tenants


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
def test_a_read_names_its_tenant_beside_row_level_security(
    unlike: list[Tenant], read: Callable[[Tenant], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [read(tenant) for tenant in unlike]
    assert answers[0] != answers[1], "nothing could be mistaken"

    @contextmanager
    def without_security(_: str, tenant_id: uuid.UUID, **__: bool) -> Iterator[postgres.Connection]:
        with superuser() as connection, connection.transaction():
            postgres.set_tenant(connection, tenant_id)
            yield connection

    monkeypatch.setattr(postgres, "tenant_transaction", without_security)
    assert [read(tenant) for tenant in unlike] == answers


def test_keys_that_open_nothing_are_not_read_for_a_request(new_owner: Callable[[], Owner]) -> None:
    """They only grow in number, and each change of a key has all that are in force read again."""
    tenant = new_owner().tenant
    valid, revoked, ended = (keys.issue_key(tenant, name, [KeyScope.READ]).stored for name in ("a", "b", "c"))
    later = keys.issue_key(tenant, "d", [KeyScope.READ], datetime.now(UTC) + timedelta(days=1)).stored
    keys.revoke_key(tenant, revoked.key_id)
    keys.rotate_key(tenant, ended.key_id, overlap_s=0)
    for load in (tenant_view.load_view, tenant_view.load_lake_view):
        view = load(tenant.tenant_id)
        assert view
        assert {valid.key_id, later.key_id} <= view.keys.keys()
        assert not {revoked.key_id, ended.key_id} & view.keys.keys()
    assert {revoked.key_id, ended.key_id} <= {key.key_id for key in keys.list_keys(tenant)}


def test_the_list_of_keys_has_those_that_ended_last(new_owner: Callable[[], Owner]) -> None:
    """A list of 100,000 revoked keys took 300 MB of the API, and delayed the events of all tenants."""
    tenant = new_owner().tenant
    valid, revoked = (keys.issue_key(tenant, name, [KeyScope.READ]).stored for name in ("valid", "revoked"))
    keys.revoke_key(tenant, revoked.key_id)
    columns = "tenant_id, name, scopes, key_hash, created_at"
    copies = f"""
        INSERT INTO api_keys ({columns}, key_id, revoked_at)
        SELECT {columns}, md5(key_id || n)::char(12), revoked_at + make_interval(secs => n * %s)
        FROM api_keys, generate_series(1, %s) n WHERE key_id = %s RETURNING key_id
    """
    with superuser() as connection:
        earlier = connection.execute(copies, [-1, 500, revoked.key_id]).fetchall()
        later = connection.execute(copies.replace("md5(", "md5('later' || "), [1, 900, revoked.key_id])
        expected = {valid.key_id, revoked.key_id, *(key_id for (key_id,) in later)}
    listed = {key.key_id for key in keys.list_keys(tenant)}
    assert expected <= listed
    assert len(listed & {key_id for (key_id,) in earlier}) == keys.LISTED_ENDED - 901
    assert len([key for key in keys.list_keys(tenant) if key.revoked_at]) == keys.LISTED_ENDED


def test_the_number_of_valid_keys_of_a_tenant_is_limited(new_owner: Callable[[], Owner]) -> None:
    tenant = new_owner().tenant
    count = len(keys.list_keys(tenant))
    with with_settings(API__MAX_KEYS=count + 2):
        first, _ = (keys.issue_key(tenant, "a key", [KeyScope.READ]).stored for _ in range(2))
        with pytest.raises(QuotaExceeded, match=f"has {count + 2} keys in force and may have {count + 2}"):
            keys.issue_key(tenant, "one more", [KeyScope.READ])
        for _ in range(count + 2):
            keys.rotate_key(tenant, first.key_id, overlap_s=3_600)
        with pytest.raises(QuotaExceeded, match=f"may have {2 * (count + 2)}"):
            keys.rotate_key(tenant, first.key_id, overlap_s=3_600)
        for key in keys.list_keys(tenant)[-count - 3 :]:
            keys.revoke_key(tenant, key.key_id)
        keys.issue_key(tenant, "one more", [KeyScope.READ])
    with with_settings(API__MAX_KEYS=0), pytest.raises(QuotaExceeded, match="may have 0"):
        keys.issue_key(tenant, "one more", [KeyScope.READ])
