"""Row-level security, seen from each role, on each table, with two tenants that have data in all of them.

`EXPECTED` is the whole decision. A table that is not in it fails the test: decide, then write it down.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import psycopg
import pytest
from psycopg import sql
from support.curated import EVER
from support.entities import entity, make_entities
from support.here import ingest_here as ingest
from support.ingest import Owner, event, make_owner

from pulse_pipelines import registry
from pulse_pipelines.curated.due import due_days
from pulse_pipelines.curated.run import curate
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.monitoring import checks
from pulse_pipelines.query.preview import preview
from pulse_pipelines.registry import datasets, intake, keys, quotas
from pulse_resources import iceberg, postgres, spark
from pulse_resources.errors import NotFound
from pulse_resources.settings import Settings
from pulse_resources.settings.service_settings import Role

ROLES: tuple[Role, ...] = get_args(Role)
KINDS = ("unset", "empty", "tenant")
"""What `app.tenant` is."""
assert ROLES == ("pulse_owner", "pulse_api", "pulse_pipeline", "pulse_catalog", "pulse_lake")

# What each role may do. The first word says which rows it sees: those of its session's tenant ("own",
# none without one), those of every tenant whatever its session ("all"), or none ("none"). The letters are
# its privileges: Select, Insert, Update, Delete. Whoever sees "all" still writes its own tenant's only,
# but for those marked "!"; whoever sees its own to "read" writes none of them, only beside them, in
# namespaces of the tenant's own.
OWN_FOR_OWNER = "own SIUD"  # it made the tables; row-level security is forced on it, too
NOTHING = "none -"
EXPECTED: dict[str, tuple[str, str, str, str, str]] = {
    # table                          pulse_owner    pulse_api    pulse_pipeline  pulse_catalog  pulse_lake
    "public.pdm_tenants":          (OWN_FOR_OWNER, "own SI",    "all S",        NOTHING, "own S"),
    "public.pdm_schemas":          ("own SI",      "own SI",    "all S",        NOTHING, NOTHING),
    "public.pdm_datasets":         (OWN_FOR_OWNER, "own SID",   "all S",        NOTHING, NOTHING),
    "public.processed_event_ids":  (OWN_FOR_OWNER, NOTHING,     "own SID",      NOTHING, NOTHING),
    "public.ingest_ranges":        (OWN_FOR_OWNER, "own S",     "all SIUD",     NOTHING, NOTHING),
    "public.ingest_positions":     (OWN_FOR_OWNER, "own SI",    "all SIU",      NOTHING, NOTHING),
    "public.landings":             (OWN_FOR_OWNER, "own S",     "all SIU",      NOTHING, NOTHING),
    "public.raw_objects":          (OWN_FOR_OWNER, "own S",     "own SIU",      NOTHING, NOTHING),
    "public.dead_letters":         (OWN_FOR_OWNER, "own S",     "own SIU",      NOTHING, NOTHING),
    "public.dead_letter_outbox":   (OWN_FOR_OWNER, NOTHING,     "all SID",      NOTHING, NOTHING),
    "public.usage":                (OWN_FOR_OWNER, "own S",     "own SIU",      NOTHING, NOTHING),
    "public.api_keys":             (OWN_FOR_OWNER, "own SI",    NOTHING,        NOTHING, "own S"),
    "public.quotas":               (OWN_FOR_OWNER, "own S",     "own S",        NOTHING, "own S"),
    "public.rates":                (OWN_FOR_OWNER, "own S",     NOTHING,        NOTHING, "own S"),
    "public.intake":               (OWN_FOR_OWNER, "own SIU",   "own SIU",      NOTHING, NOTHING),
    "public.intake_holds":         (OWN_FOR_OWNER, "own S",     "own SIUD",     NOTHING, NOTHING),
    "public.rate_shares":          (OWN_FOR_OWNER, "own SIU",   NOTHING,        NOTHING, NOTHING),
    "public.intake_doubts":        (OWN_FOR_OWNER, "own SIUD",  NOTHING,        NOTHING, NOTHING),
    "public.dataset_versions":     (OWN_FOR_OWNER, "own SI",    "all S",        NOTHING, NOTHING),
    "public.dataset_moves":        (OWN_FOR_OWNER, "own SIU",   "all SU",       NOTHING, NOTHING),
    "public.entity_logs":          (OWN_FOR_OWNER, "own SI",    "all SU",       NOTHING, NOTHING),
    "public.entity_heads":         (OWN_FOR_OWNER, NOTHING,     "own SID",      NOTHING, NOTHING),
    "public.entity_indexes":       (OWN_FOR_OWNER, "own SID",   "own S",        NOTHING, NOTHING),
    "public.entity_index_runs": (OWN_FOR_OWNER, "own SID",   "own SIUD",     NOTHING, NOTHING),
    "public.entity_index_readers": (OWN_FOR_OWNER, "own SIUD",  NOTHING,        NOTHING, NOTHING),
    "public.event_states":         (OWN_FOR_OWNER, "own SID",   "all S",        NOTHING, NOTHING),
    "public.event_state_keys":     (OWN_FOR_OWNER, "own SIUD",  "own SIUD",     NOTHING, NOTHING),
    "public.event_windows":        (OWN_FOR_OWNER, "own SIUD",  "all SU",       NOTHING, NOTHING),
    "public.event_window_buckets": (OWN_FOR_OWNER, "own SIUD",  "own SIUD",     NOTHING, NOTHING),
    "public.entity_syncs":         (OWN_FOR_OWNER, "own SIU",   "all SIU",      NOTHING, NOTHING),
    "public.entity_sync_ids":      (OWN_FOR_OWNER, "own I",     "own SID",      NOTHING, NOTHING),
    "public.pipes":                (OWN_FOR_OWNER, "own SIUD",  "all SU",       NOTHING, NOTHING),
    "public.pipe_deliveries":      (OWN_FOR_OWNER, "own S",     "all SIUD",     NOTHING, NOTHING),
    "public.sql_queries":          (OWN_FOR_OWNER, "own SIUD",  NOTHING,        NOTHING, NOTHING),
    "public.lake_requests":        (OWN_FOR_OWNER, NOTHING,     NOTHING,        NOTHING, "own SID"),
    "public.lake_purges":          (OWN_FOR_OWNER, NOTHING,     NOTHING,        NOTHING, "own SI"),
    "public.questions":            (OWN_FOR_OWNER, "own SIUD",  NOTHING,        NOTHING, NOTHING),
    "public.deleted_datasets":     (OWN_FOR_OWNER, "own SI",    "own S",        NOTHING, NOTHING),
    "public.backfills":            (OWN_FOR_OWNER, "own S",     "all SI",       NOTHING, NOTHING),
    "public.erasures":             (OWN_FOR_OWNER, NOTHING,     "own SIU",      NOTHING, NOTHING),
    "public.erased_offsets":       (OWN_FOR_OWNER, "own S",     "own SIU",      NOTHING, NOTHING),
    "public.accepted_losses":      (OWN_FOR_OWNER, NOTHING,     "own SI",       NOTHING, NOTHING),
    "public.summaries":            (OWN_FOR_OWNER, "own S",     "all SIUD",     NOTHING, NOTHING),
    "public.check_results":        (OWN_FOR_OWNER, "own S",     "own SIU",      NOTHING, NOTHING),
    "public.failures":             (OWN_FOR_OWNER, NOTHING,     "all SIUD",     NOTHING, NOTHING),
    "public.upkeep_log":           (OWN_FOR_OWNER, NOTHING,     "all SIU",      NOTHING, NOTHING),
    "public.upkeep_tables":        (OWN_FOR_OWNER, NOTHING,     "all SIU",      NOTHING, NOTHING),
    "public.upkeep_days":          (OWN_FOR_OWNER, NOTHING,     "all SIU",      NOTHING, NOTHING),
    "public.upkeep_tenants":       (OWN_FOR_OWNER, NOTHING,     "all SIU",      NOTHING, NOTHING),
    "iceberg_catalog.iceberg_tables":
                                   ("none SIUD",   "own SIUD",  "own SIU",      "all! SIUD", "read SIUD"),
    "iceberg_catalog.iceberg_namespace_properties":
                                   ("none SIUD",   "own SIU",   "all S",        "all! SIUD", "none SIUD"),
}  # fmt: skip
# These name no tenant: row-level security has nothing to say about them, privileges have.
WITHOUT_TENANT: dict[str, tuple[str, str, str, str, str]] = {
    "public.ingest_batches":       ("SIUD",        "-",         "SIU",          "-", "-"),
    "public.alerts":               ("SIUD",        "-",         "SIUD",         "-", "-"),
    "public.alert_deliveries":     ("SIUD",        "-",         "SIUD",         "-", "-"),
    "public.registry_version":     ("SIUD",        "-",         "S",            "-", "-"),
    "public.store_mark":           ("SIUD",        "-",         "SIU",          "-", "-"),
    "public.family_versions":      ("SIUD",        "-",         "S",            "-", "-"),
    "public.api_processes":        ("SIUD",        "SIUD",      "-",            "-", "-"),
    "public.operator_keys":        ("SIUD",        "S",         "-",            "-", "-"),
    "public._yoyo_log":            ("SIUD",        "-",         "-",            "-", "-"),
    "public._yoyo_migration":      ("SIUD",        "-",         "-",            "-", "-"),
    "public._yoyo_version":        ("SIUD",        "-",         "-",            "-", "-"),
    "public.yoyo_lock":            ("SIUD",        "-",         "-",            "-", "-"),
}  # fmt: skip
PRIVILEGES = {"S": "SELECT", "I": "INSERT", "U": "UPDATE", "D": "DELETE"}
BEYOND = ("TRUNCATE", "REFERENCES", "TRIGGER")

RELATIONS = """
SELECT n.nspname || '.' || c.relname, c.relkind::text, c.relrowsecurity AND c.relforcerowsecurity,
    pg_get_userbyid(c.relowner)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('public', 'iceberg_catalog') AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""


@dataclass(frozen=True)
class Scope:
    """How a table says whose a row is."""

    table: sql.Composable
    column: sql.Composable
    mine: str
    theirs: str


@dataclass(frozen=True)
class Pair:
    """Two tenants with rows in every table; sessions belong to `a`."""

    settings: Settings
    a: Owner
    b: Owner
    unrestricted: "psycopg.Connection[Any]"
    """A superuser's connection, which commits each statement."""
    sessions: "Mapping[tuple[Role, str], psycopg.Connection[Any]]"
    """By role and by what `app.tenant` is, since a connection that had one never again has none."""

    def scope(self, table: str) -> Scope:
        name = sql.Identifier(*table.split("."))
        if not table.startswith("iceberg_catalog."):
            return Scope(
                name, sql.Identifier("tenant_id"), str(self.a.tenant.tenant_id), str(self.b.tenant.tenant_id)
            )
        column = "table_namespace" if table.endswith("tables") else "namespace"
        return Scope(name, sql.Identifier(column), self.a.tenant.namespace, self.b.tenant.namespace)


def superuser(settings: Settings) -> "psycopg.Connection[Any]":
    return psycopg.connect(settings.postgres.superuser_url(settings.postgres.database))


UPKEEP = (
    "INSERT INTO upkeep_log (tenant_id, upkeep_id, task, reason) VALUES (%(tenant)s, 'any', 'sweep', 'any')",
    "INSERT INTO upkeep_tables (tenant_id, dataset_id, seen_at, snapshots, manifests)"
    " SELECT tenant_id, dataset_id, now(), 1, 1 FROM pdm_datasets WHERE tenant_id = %(tenant)s",
    "INSERT INTO upkeep_days (tenant_id, dataset_id, day, level, landed_files, landed_bytes, files, bytes)"
    " SELECT tenant_id, dataset_id, '2026-11-19', 1, 1, 1, 1, 1 FROM pdm_datasets"
    " WHERE tenant_id = %(tenant)s",
    "INSERT INTO check_results (tenant_id, dataset_id, name, scope, problems)"
    " SELECT tenant_id, dataset_id, 'any', 'table', 0 FROM pdm_datasets WHERE tenant_id = %(tenant)s",
    "INSERT INTO upkeep_tenants (tenant_id) VALUES (%(tenant)s)",
    "INSERT INTO failures (tenant_id, job, task, error, retry_at)"
    " VALUES (%(tenant)s, 'any', 'any', 'any', now())",
)

ERASURES = (
    "INSERT INTO erasures (tenant_id, erasure_id, dataset_id, slug, field, salt, value_hash, covers)"
    " SELECT tenant_id, 'any', dataset_id, slug, 'any', '', '', '{}' FROM pdm_datasets"
    " WHERE tenant_id = %(tenant)s",
    "INSERT INTO erased_offsets VALUES (%(tenant)s, 'any', 0, '{}')",
    "INSERT INTO accepted_losses (tenant_id, partition, position, problem) VALUES (%(tenant)s, 0, 0, 'any')",
    "INSERT INTO intake_holds VALUES (%(tenant)s, 'events', 'any', '2026-11-01', 1, 0)",
    # Processes that were not seen for a minute are forgotten by others: this one is from the future.
    "INSERT INTO api_processes (process, seen_at) VALUES (%(tenant)s, 'infinity')",
    "INSERT INTO rate_shares (tenant_id, kind, process, asked) VALUES (%(tenant)s, 'any', %(tenant)s, 1)",
)
BACKFILLS = (
    "INSERT INTO backfills (tenant_id, backfill_id, dataset_id, slug, day, schema_version, rows,"
    " dead_letters, files_before, files_after, bytes, snapshot_id)"
    " SELECT tenant_id, 'any', dataset_id, slug, '2026-11-19', 1, 1, 0, 1, 1, 1, 1 FROM pdm_datasets"
    " WHERE tenant_id = %(tenant)s",
)
QUERIES = (  # one of long ago: what is young nobody deletes
    "INSERT INTO sql_queries (tenant_id, query_id, sql, asked_at)"
    " VALUES (%(tenant)s, 'any', '', '2020-01-01')",
)
REQUESTS = (
    "INSERT INTO lake_requests (tenant_id, request_key, asked) VALUES (%(tenant)s, 'any', 'any')",
    "INSERT INTO lake_purges (tenant_id, location) VALUES (%(tenant)s, 'any')",
)
QUESTIONS = (
    "INSERT INTO questions (tenant_id, question_id, question, provider, asked_at)"
    " VALUES (%(tenant)s, 'any', '', 'grammar', '2020-01-01')",
)
SYNCS = (
    "INSERT INTO entity_syncs (tenant_id, dataset_id, is_full, sequence_id, request_id, starts)"
    " SELECT tenant_id, dataset_id, true, 'any', 'any', '{}' FROM entity_logs WHERE tenant_id = %(tenant)s",
    "INSERT INTO entity_sync_ids (tenant_id, sync_id, ids)"
    " SELECT tenant_id, sync_id, '' FROM entity_syncs WHERE tenant_id = %(tenant)s",
    "INSERT INTO pipes (tenant_id, pipe, dataset_id, definition)"
    " SELECT tenant_id, 'any', dataset_id, '{}' FROM entity_logs WHERE tenant_id = %(tenant)s",
    "INSERT INTO pipe_deliveries (tenant_id, pipe) VALUES (%(tenant)s, 'any')",
)
INDEXES = (
    "INSERT INTO entity_indexes (tenant_id, dataset_id, expression)"
    " SELECT tenant_id, dataset_id, 'any' FROM entity_logs WHERE tenant_id = %(tenant)s",
    "INSERT INTO entity_index_runs (tenant_id, index_id, first, versions, packed)"
    " SELECT tenant_id, index_id, 1, 1, decode(repeat('00', 32), 'hex') FROM entity_indexes"
    " WHERE tenant_id = %(tenant)s",
    "INSERT INTO entity_index_readers (tenant_id, index_id, reader)"
    " SELECT tenant_id, index_id, 'any' FROM entity_indexes WHERE tenant_id = %(tenant)s",
)
STATES = (
    "INSERT INTO event_states (tenant_id, dataset_id, latest_by, max_keys)"
    " SELECT tenant_id, dataset_id, 'any', 1 FROM pdm_datasets"
    " WHERE tenant_id = %(tenant)s AND slug = 'orders'",
    "INSERT INTO event_state_keys (tenant_id, dataset_id, key, at, partition, event_offset, event_id)"
    " SELECT tenant_id, dataset_id, 'any', 0, 0, 0, 'any' FROM event_states WHERE tenant_id = %(tenant)s",
    "INSERT INTO event_windows (tenant_id, dataset_id, sums, max_buckets)"
    " SELECT tenant_id, dataset_id, '{}', 1 FROM event_states WHERE tenant_id = %(tenant)s",
    "INSERT INTO event_window_buckets"
    " (tenant_id, dataset_id, number, key, minute, events, first_at, last_at, sums)"
    " SELECT tenant_id, dataset_id, number, 'any', 0, 1, 0, 0, '{}' FROM event_windows"
    " WHERE tenant_id = %(tenant)s",
)
MOVES = (
    "INSERT INTO dataset_moves (tenant_id, move_id, dataset_id, slug, from_uri, schema_uri, state)"
    " SELECT tenant_id, 'any', dataset_id, slug, '', '', 'done' FROM pdm_datasets"
    " WHERE tenant_id = %(tenant)s",
)


@pytest.fixture(scope="module")
def pair(stack: Settings) -> Iterator[Pair]:
    """Two tenants after one batch each with a row, a duplicate and a dead letter."""
    owners = []
    for _ in range(2):
        owners.append(make_owner())
        owners[-1].send(event("a"), event("a"), b"not json")
    batch = ingest(*owners)
    with superuser(stack) as connection:
        for owner in owners:
            for statement in (*UPKEEP, *ERASURES, *BACKFILLS, *QUERIES, *REQUESTS, *QUESTIONS, *MOVES):
                connection.execute(statement, {"tenant": owner.tenant.tenant_id})
    days = [d for d in due_days([], EVER).days if d.tenant in [owner.tenant for owner in owners]]
    with spark.session() as session:
        assert len(curate(session, days).days) == len(owners)
    for owner in owners:
        make_entities(owner)
        owner.send(entity("a"))
        keys.issue_key(owner.tenant, "any", [KeyScope.READ])
        quotas.set_limits(owner.tenant, max_records_per_month=100)
        (reserved,) = intake.reserve(owner.tenant, [[b"event"]], 100)
        intake.release(owner.tenant, reserved, sent=1)
        registry.create_dataset(owner.tenant, "gone", f"pulse://{owner.tenant.slug}/orders/1")
        registry.delete_dataset(owner.tenant, "gone")
    ingest(*owners)
    with superuser(stack) as connection:
        for owner in owners:
            for statement in (*SYNCS, *INDEXES, *STATES):
                connection.execute(statement, {"tenant": owner.tenant.tenant_id})
    with superuser(stack) as connection:  # a batch leaves nothing there once its dead letters are published
        connection.cursor().executemany(
            "INSERT INTO dead_letter_outbox (tenant_id, batch_id) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            [(owner.tenant.tenant_id, batch) for owner in owners],
        )
    registry.create_dataset(owners[1].tenant, "secret", f"pulse://{owners[1].tenant.slug}/orders/1")
    with ExitStack() as connections:
        above = connections.enter_context(superuser(stack))
        above.autocommit = True
        sessions = {
            (role, kind): connections.enter_context(psycopg.connect(stack.postgres.url(role)))
            for role in ROLES
            for kind in KINDS
        }
        yield Pair(stack, *owners, above, sessions)
    with superuser(stack) as connection:  # else it would count for ever as one that shares the rates
        connection.execute("DELETE FROM api_processes WHERE seen_at = 'infinity'")


@contextmanager
def session(pair: Pair, role: Role, kind: str) -> Iterator["psycopg.Connection[Any]"]:
    """A transaction as `role` with app.tenant unset, empty or of tenant A; rolled back at the end."""
    connection = pair.sessions[role, kind]
    if kind != "unset":
        tenant = str(pair.a.tenant.tenant_id) if kind == "tenant" else ""
        connection.execute("SELECT set_config('app.tenant', %s, true)", [tenant])
    try:
        yield connection
    finally:
        connection.rollback()


def attempt(connection: "psycopg.Connection[Any]", query: sql.Composed, values: list[object]) -> int | str:
    """How many rows a statement touched, or the SQLSTATE it was refused with; either way it is undone."""
    with connection.transaction(force_rollback=True):
        try:
            return connection.execute(query, values).rowcount
        except psycopg.Error as error:
            return str(error.sqlstate)


REFUSED = psycopg.errors.InsufficientPrivilege.sqlstate
EXISTS = psycopg.errors.UniqueViolation.sqlstate


def test_every_table_has_a_decision(pair: Pair) -> None:
    with superuser(pair.settings) as connection:
        relations = connection.execute(RELATIONS).fetchall()
    assert {name for name, *_ in relations} == EXPECTED.keys() | WITHOUT_TENANT.keys()
    assert {kind for _, kind, *_ in relations} == {"r"}, (
        "a view needs security_invoker: test it, then allow it"
    )
    assert {name for name, _, forced, _ in relations if forced} == EXPECTED.keys()
    assert {owner for *_, owner in relations} == {"pulse_owner"}


@pytest.mark.parametrize("table", WITHOUT_TENANT)
def test_a_table_without_a_policy_has_no_tenant_column(pair: Pair, table: str) -> None:
    with superuser(pair.settings) as connection:
        columns = [c.name for c in connection.execute(f"SELECT * FROM {table} LIMIT 0").description]
    assert not [name for name in columns if "tenant" in name or "namespace" in name]


def test_the_check_covers_every_tenant_scoped_table() -> None:
    assert {name.split(".")[1] for name in EXPECTED} == set(checks.RLS_TABLES)


def test_no_role_bypasses_row_level_security(pair: Pair) -> None:
    query = """
        SELECT rolname, rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR rolreplication,
            (SELECT count(*) FROM pg_auth_members m WHERE m.member = r.oid OR m.roleid = r.oid)
        FROM pg_roles r WHERE rolname = ANY(%s)
    """
    with superuser(pair.settings) as connection:
        assert set(connection.execute(query, [list(ROLES)])) == {(role, False, 0) for role in ROLES}


SCHEMAS = {
    # schema              pulse_owner        pulse_api  pulse_pipeline     pulse_catalog  pulse_lake
    "public":          ({"USAGE", "CREATE"}, {"USAGE"}, {"USAGE"},           set(),     {"USAGE"}),
    "iceberg_catalog": ({"USAGE", "CREATE"}, {"USAGE"}, {"USAGE"},           {"USAGE"}, {"USAGE"}),
    "staging":         ({"USAGE", "CREATE"}, set(),     {"USAGE", "CREATE"}, set(),     set()),
}  # fmt: skip


def test_a_role_enters_only_the_schemas_that_it_needs(pair: Pair) -> None:
    """Staging holds payloads of all tenants, unguarded: it is the pipeline's alone."""
    query = """
        SELECT nspname FROM pg_namespace
        WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
    """
    ask = "SELECT has_schema_privilege(%s, %s, %s)"
    with superuser(pair.settings) as connection:
        assert {name for (name,) in connection.execute(query)} == SCHEMAS.keys()
        for schema, expected in SCHEMAS.items():
            for role, privileges in zip(ROLES, expected, strict=True):
                granted = {
                    p for p in ("USAGE", "CREATE") if connection.execute(ask, [role, schema, p]).fetchone()[0]
                }
                assert granted == privileges, f"{role} in {schema}"


def test_only_the_owner_enters_dagster_s_database(pair: Pair) -> None:
    ask = "SELECT has_database_privilege(%s, %s, 'CONNECT')"
    name = pair.settings.postgres.dagster_database
    with superuser(pair.settings) as connection:
        may = {role for role in ROLES if connection.execute(ask, [role, name]).fetchone()[0]}
    assert may == {"pulse_owner"}


@pytest.mark.parametrize("table", EXPECTED)
def test_both_tenants_have_rows(pair: Pair, table: str) -> None:
    scope = pair.scope(table)
    query = sql.SQL("SELECT DISTINCT {}::text FROM {}").format(scope.column, scope.table)
    assert {scope.mine, scope.theirs} <= {row[0] for row in pair.unrestricted.execute(query)}


@pytest.mark.parametrize("role", ROLES)
def test_privileges_are_the_least(pair: Pair, role: Role) -> None:
    ask = """
        SELECT t, p FROM unnest(%s::text[]) t, unnest(%s::text[]) p WHERE has_table_privilege(%s, t, p)
    """
    tables, privileges = EXPECTED | WITHOUT_TENANT, [*PRIVILEGES.values(), *BEYOND]
    granted = {*pair.unrestricted.execute(ask, [[*tables], privileges, role])}
    if role == "pulse_owner":  # on paper; what is immutable is so by a trigger
        granted = {(table, privilege) for table, privilege in granted if privilege not in BEYOND}
    letters = {table: decided[ROLES.index(role)].split()[-1] for table, decided in tables.items()}
    expected = {table: "SIUD" if role == "pulse_owner" else rights for table, rights in letters.items()}
    assert granted == {
        (table, PRIVILEGES[p]) for table, rights in expected.items() for p in rights if p != "-"
    }


# No tenant is no tenant, whether it is unset or empty: for most roles the second is a slow case. So is either
# where a role may nothing, which Postgres refuses before it asks for a tenant.
SESSIONS = [
    pytest.param(
        table,
        role,
        kind,
        marks=pytest.mark.slow
        if (kind == "empty" and role != "pulse_api") or (kind != "tenant" and decided == NOTHING)
        else (),
    )
    for table, decisions in EXPECTED.items()
    for role, decided in zip(ROLES, decisions, strict=True)
    for kind in KINDS
]


@pytest.mark.parametrize(("table", "role", "kind"), SESSIONS)
def test_a_role_reads_and_changes_only_permitted_rows(pair: Pair, table: str, role: Role, kind: str) -> None:
    sees, letters = EXPECTED[table][ROLES.index(role)].split()
    may_write_all = sees == "all!"
    scope = pair.scope(table)
    names = {"table": scope.table, "column": scope.column}
    visible = {
        "none": set(),
        "own": {scope.mine} if kind == "tenant" else set(),
        "read": {scope.mine} if kind == "tenant" else set(),
        "all": {scope.mine, scope.theirs},
        "all!": {scope.mine, scope.theirs},
    }[sees]
    with session(pair, role, kind) as connection:
        read = sql.SQL("SELECT DISTINCT {column}::text FROM {table}").format(**names)
        if "S" not in letters:
            assert attempt(connection, read, []) == REFUSED
        else:
            read_keys = {row[0] for row in connection.execute(read)}
            assert read_keys == visible or (sees.startswith("all") and read_keys > visible)

        for letter, statement in (
            ("U", "UPDATE {table} SET {column} = {column} WHERE {column} = %s"),
            ("D", "DELETE FROM {table} WHERE {column} = %s"),
        ):
            query = sql.SQL(statement).format(**names)
            theirs = attempt(connection, query, [scope.theirs])
            assert theirs != 0 if may_write_all else theirs == (0 if letter in letters else REFUSED)
            # The control: the same statement does reach the tenant's own rows, where it may.
            mine = attempt(connection, query, [scope.mine])
            writes_mine = may_write_all or (kind == "tenant" and sees not in ("none", "read"))
            if letter not in letters:
                assert mine == REFUSED
            else:
                assert (mine != 0) == writes_mine

        insert = sql.SQL("INSERT INTO {table} SELECT * FROM json_populate_record(null::{table}, %s)")
        for owner_key in (scope.theirs, scope.mine):
            outcome = attempt(connection, insert.format(**names), [json.dumps(_row(pair, scope, owner_key))])
            welcome = may_write_all or (
                kind == "tenant" and sees not in ("none", "read") and owner_key == scope.mine
            )
            assert outcome == (EXISTS if "I" in letters and welcome else REFUSED)

        if "U" in letters and kind == "tenant" and not may_write_all and sees not in ("none", "read"):
            give = sql.SQL("UPDATE {table} SET {column} = %s WHERE {column} = %s").format(**names)
            assert attempt(connection, give, [scope.theirs, scope.mine]) == REFUSED


LAKE = (
    "INSERT INTO iceberg_catalog.iceberg_tables VALUES ('pulse', %(name)s, 'new', 's3://x')",
    "INSERT INTO iceberg_catalog.iceberg_namespace_properties VALUES ('pulse', %(name)s, 'new', 'x')",
    "UPDATE iceberg_catalog.iceberg_tables SET metadata_location = 's3://y' WHERE table_namespace = %(name)s",
    "UPDATE iceberg_catalog.iceberg_namespace_properties SET property_value = 'y' WHERE namespace = %(name)s",
    "SELECT * FROM iceberg_catalog.iceberg_tables WHERE table_namespace = %(name)s",
    "SELECT * FROM iceberg_catalog.iceberg_namespace_properties WHERE namespace = %(name)s",
    "DELETE FROM iceberg_catalog.iceberg_tables WHERE table_namespace = %(name)s",
    "DELETE FROM iceberg_catalog.iceberg_namespace_properties WHERE namespace = %(name)s",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("statement", LAKE)
def test_the_lake_writes_in_namespaces_of_the_tenant_s_own_alone(
    pair: Pair, statement: str, kind: str
) -> None:
    for owner, mine in ((pair.a, kind == "tenant"), (pair.b, False)):
        values = {"name": f"{owner.tenant.namespace}.own"}
        with session(pair, "pulse_lake", kind) as connection:
            for insert in LAKE[:2] if statement not in LAKE[:2] else ():
                pair.unrestricted.execute(insert, values)
            try:
                outcome: int | str = connection.execute(statement, values).rowcount
            except psycopg.Error as error:
                outcome = str(error.sqlstate)
            connection.rollback()
        for delete in LAKE[-2:]:
            pair.unrestricted.execute(delete, values)
        assert outcome == (1 if mine else REFUSED if statement in LAKE[:2] else 0), owner


def _row(pair: Pair, scope: Scope, owner_key: str) -> dict[str, object]:
    query = sql.SQL("SELECT to_json(t) FROM {} t WHERE {} = %s LIMIT 1").format(scope.table, scope.column)
    row: dict[str, object] = pair.unrestricted.execute(query, [owner_key]).fetchone()[0]
    return row


@pytest.mark.parametrize("role", ["pulse_owner", "pulse_api", "pulse_pipeline"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_pooled_connection_forgets_its_tenant(pair: Pair, role: Role, fails: bool) -> None:
    where = "SELECT pg_backend_pid(), current_setting('app.tenant', true)"
    postgres.close_pools()  # a fresh pool has one connection to lend, the same one again
    try:
        with postgres.tenant_transaction(role, pair.a.tenant.tenant_id) as connection:
            backend, inside = connection.execute(where).fetchone()
            if fails:
                connection.execute("SELECT 1 / 0")
    except psycopg.errors.DivisionByZero:
        assert fails
    assert inside == str(pair.a.tenant.tenant_id)
    table = "usage" if role != "pulse_api" else "pdm_tenants"
    with postgres.transaction(role) as connection:
        again, after = connection.execute(where).fetchone()
        assert again == backend, "the pool lent another connection: the test shows nothing"
        assert after in (None, "")
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_a_session_that_names_no_tenant_by_id_is_an_error(pair: Pair) -> None:
    with postgres.transaction("pulse_api") as connection:
        connection.execute("SELECT set_config('app.tenant', %s, true)", [pair.b.tenant.slug])
        refused = attempt(connection, sql.SQL("SELECT * FROM pdm_tenants"), [])
    assert refused == psycopg.errors.InvalidTextRepresentation.sqlstate


@pytest.mark.parametrize("role", ["pulse_api", "pulse_pipeline"])
def test_a_tenant_cannot_swap_the_table_of_another(pair: Pair, role: Role) -> None:
    location = registry.current_table(pair.b.tenant, "orders").metadata_location
    name = (pair.b.tenant.namespace, "orders")
    with postgres.tenant_transaction(role, pair.a.tenant.tenant_id) as connection:
        assert not iceberg.swap(connection, name, location, "s3://pulse/elsewhere.metadata.json")
    with postgres.transaction(role) as connection:
        assert not iceberg.swap(connection, name, location, "s3://pulse/elsewhere.metadata.json")
    assert registry.current_table(pair.b.tenant, "orders").metadata_location == location
    with postgres.tenant_transaction(role, pair.b.tenant.tenant_id) as connection:
        assert iceberg.swap(connection, name, location, location), "the owner's own session can"


@pytest.mark.parametrize(
    "find", [registry.find_dataset, registry.current_table, lambda t, s: preview(t, s, 10)]
)
def test_a_foreign_dataset_is_absent_like_one_that_does_not_exist(pair: Pair, find: Any) -> None:
    assert find(pair.b.tenant, "secret") is not None
    errors = []
    for slug in ("secret", "absent"):
        with pytest.raises(NotFound) as caught:
            find(pair.a.tenant, slug)
        error = caught.value
        errors.append((type(error), str(error).replace(slug, "*"), error.fix, sorted(error.where)))
    assert errors[0] == errors[1]


def test_a_tenant_cannot_base_a_dataset_on_the_schema_of_another(pair: Pair) -> None:
    foreign = f"pulse://{pair.b.tenant.slug}/orders/1"
    with pytest.raises(NotFound) as caught:
        registry.create_dataset(pair.a.tenant, "borrowed", foreign)
    with pytest.raises(NotFound) as absent:
        registry.create_dataset(pair.a.tenant, "borrowed", foreign.replace("orders", "absent"))
    assert str(caught.value).replace("orders", "absent") == str(absent.value)
    # Nor around the registry, by writing the row itself.
    with (
        pytest.raises(psycopg.errors.ForeignKeyViolation),
        postgres.tenant_transaction("pulse_api", pair.a.tenant.tenant_id) as connection,
    ):
        connection.execute(
            datasets.INSERT_DATASET,
            [
                uuid.uuid4(),
                pair.a.tenant.tenant_id,
                "borrowed",
                "borrowed",
                foreign,
                "{}",
                "refuse",
                "events",
            ],
        )
