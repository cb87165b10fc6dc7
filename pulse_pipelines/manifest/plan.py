"""The plan of a manifest: the steps from what a tenant has to what the manifest says."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial

from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.key import ApiKey
from pulse_pipelines.domain.naming import check_name
from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.quota import Limits
from pulse_pipelines.domain.schemas.compatibility import incompatibilities
from pulse_pipelines.domain.schemas.schema import SchemaUri, check_document
from pulse_pipelines.domain.tenant import Tenant, check_slug
from pulse_pipelines.manifest import steps
from pulse_pipelines.manifest.document import DatasetPart, KeyPart, LimitsPart, Manifest
from pulse_pipelines.manifest.steps import Action, Outcome, Step
from pulse_resources.errors import Conflict, NotFound, UserError, some_of
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock

MOST_NAMED = 3
"""Conflicts that an error names."""


@dataclass(frozen=True)
class _Existing:
    """What the tenant has."""

    tenant: Tenant | None
    limits: Limits
    schemas: Mapping[str, Mapping[int, str]]
    """Published documents by name and version."""
    datasets: Mapping[str, Dataset]
    keys: Mapping[str, list[ApiKey]]
    """Keys in force by name."""
    pipes: Mapping[str, Definition]


def plan(manifest: Manifest, *, prune: bool = False) -> list[Step]:
    """Compare a manifest with its tenant, and list the steps in the order in which they are possible.

    Args:
        prune: remove datasets and pipes, and revoke keys, that the manifest does not name.

    Raises:
        UserError: a name, a schema or a reference of the manifest is not valid.
    """
    check_slug("tenant", manifest.tenant)
    check_name("tenant", manifest.name or manifest.tenant)
    for name in manifest.keys:
        check_name("key", name)
    _check_references(manifest)
    existing = _find_existing(manifest)
    addresses, schema_steps = _plan_schemas(manifest, existing)
    # A pipe to a sink may read the dataset that another pipe creates.
    inbound_first = sorted(manifest.pipes, key=lambda definition: definition.delivers)
    listed = [
        _plan_tenant(manifest, existing),
        *_plan_limits(manifest.limits, existing),
        *schema_steps,
        *(_plan_dataset(slug, manifest, addresses, existing) for slug in manifest.datasets),
        *(_plan_key(name, part, existing) for name, part in manifest.keys.items()),
        *(_plan_pipe(definition, existing) for definition in inbound_first),
    ]
    return [*listed, *_plan_removals(manifest, existing)] if prune else listed


@contextmanager
def exclusively(slug: str, on_wait: Callable[[], None]) -> Iterator[None]:
    """Keep other manifests of the tenant from being applied while the block runs; waits for one that is.

    Args:
        slug: the tenant's, which need not exist.
        on_wait: called once, before it waits.

    Raises:
        UserError: it is not a slug.
    """
    check_slug("tenant", slug)
    with ExitStack() as turn:
        if turn.enter_context(locks.session(Lock.MANIFEST, slug)) is None:
            on_wait()
            turn.enter_context(locks.session(Lock.MANIFEST, slug, wait_seconds=math.inf))
        yield


def refuse_conflicts(manifest: Manifest, listed: Sequence[Step]) -> None:
    """Refuse a plan that cannot be carried out as a whole. Raises Conflict, which names what differs."""
    conflicts = [step for step in listed if step.action is Action.CONFLICT]
    if not conflicts:
        return
    named = [
        f"the {step.kind} {step.name} differs from the manifest: {step.detail}"
        for step in conflicts[:MOST_NAMED]
    ]
    more = len(conflicts) - len(named)
    raise Conflict(
        "; ".join(named) + (f"; and {more} more, which --plan shows" if more else ""),
        fix="Nothing was changed: change the manifest, or what it conflicts with",
        tenant=manifest.tenant,
    )


def carry_out(manifest: Manifest, listed: Sequence[Step]) -> Iterator[tuple[Step, Outcome]]:
    """Carry the steps out, in order; yields each that changes something once it is done.

    The first error ends it. What was done stays, and the next plan begins there.

    Raises:
        Conflict: the plan has a conflict; nothing was changed.
        PulseError: as the registry's functions.
    """
    refuse_conflicts(manifest, listed)
    tenant: Tenant | None = None
    for step in listed:
        if step.kind == "tenant" and step.changes:
            tenant = registry.create_tenant(manifest.tenant, manifest.name)
            yield step, Outcome(str(tenant.tenant_id))
        elif step.changes:
            tenant = tenant or registry.find_tenant(manifest.tenant)
            yield step, step.carry_out(tenant)


def _check_references(manifest: Manifest) -> None:
    undefined = [
        f"{slug} ({part.schema_name!r})"
        for slug, part in manifest.datasets.items()
        if part.schema_name not in manifest.schemas and not part.schema_name.startswith("pulse://")
    ]
    if undefined:
        raise UserError(
            f"datasets: the manifest has no such schema: {some_of(undefined)}",
            fix="Name one of its schemas, or an address: pulse://<tenant>/<name>/<version>",
        )


def _find_existing(manifest: Manifest) -> _Existing:
    try:
        tenant = registry.find_tenant(manifest.tenant)
    except NotFound:
        return _Existing(tenant=None, limits=Limits(), schemas={}, datasets={}, keys={}, pipes={})
    named = {part.schema_name for part in manifest.datasets.values()} - manifest.schemas.keys()
    names = {*manifest.schemas, *(SchemaUri.parse(address).name for address in named)}
    schemas: dict[str, dict[int, str]] = defaultdict(dict)
    for schema in registry.load_schemas(tenant, names):
        schemas[schema.name][schema.version] = schema.document
    keys: dict[str, list[ApiKey]] = defaultdict(list)
    now = datetime.now(UTC)
    for key in registry.keys.list_keys(tenant):
        if key.in_force(now):
            keys[key.name].append(key)
    return _Existing(
        tenant=tenant,
        limits=registry.quotas.find_tenant_limits(tenant),
        schemas=schemas,
        datasets={dataset.slug: dataset for dataset in registry.list_datasets(tenant)},
        keys=keys,
        pipes={pipe.name: pipe.definition for pipe in pipes.list_pipes(tenant)},
    )


def _plan_tenant(manifest: Manifest, existing: _Existing) -> Step:
    # `carry_out` creates the tenant: all other steps need it.
    return Step(Action.KEEP if existing.tenant else Action.CREATE, "tenant", manifest.tenant)


def _plan_limits(limits: LimitsPart, existing: _Existing) -> Iterator[Step]:
    before = asdict(existing.limits)
    differing = {
        name: value for name, value in limits.model_dump(exclude_none=True).items() if value != before[name]
    }
    if differing:
        detail = ", ".join(f"{name} {before[name]:g} → {value:g}" for name, value in differing.items())
        carry_out = partial(steps.set_limits, LimitsPart(**differing))
        yield Step(Action.CHANGE, "limits", ", ".join(differing), detail, carry_out)


def _plan_schemas(manifest: Manifest, existing: _Existing) -> tuple[dict[str, tuple[str, str]], list[Step]]:
    """By name, the address and the document of the last version; and the steps that publish what is new."""
    last: dict[str, tuple[str, str]] = {}
    listed: list[Step] = []
    for name, documents in manifest.schemas.items():
        check_slug("schema", name)
        versions = {document: version for version, document in existing.schemas.get(name, {}).items()}
        latest = max(versions.values(), default=0)
        for document in documents:
            try:
                registry.checked_schema(document)
            except UserError as error:
                raise UserError(f"schemas.{name}: {error.message}", fix=error.fix) from None
            action = Action.KEEP if document in versions else Action.CREATE
            version = versions.setdefault(document, latest + 1)
            latest = max(latest, version)
            address = str(SchemaUri(manifest.tenant, name, version))
            carry_out = partial(steps.publish_schema, name, document)
            listed.append(
                Step(action, "schema", address, carry_out=carry_out)
                if action is Action.CREATE
                else Step(action, "schema", address)
            )
            last[name] = address, document
    return last, listed


def _plan_dataset(
    slug: str, manifest: Manifest, addresses: Mapping[str, tuple[str, str]], existing: _Existing
) -> Step:
    part = manifest.datasets[slug]
    check_slug("dataset", slug)
    address, document = _schema_of(slug, part, addresses, existing)
    dataset = existing.datasets.get(slug)
    if dataset is None:
        carry_out = partial(steps.create_dataset, slug, part, address)
        return Step(Action.CREATE, "dataset", slug, f"schema {address}", carry_out)
    if difference := _lasting_difference(part, dataset):
        return Step(
            Action.CONFLICT, "dataset", slug, f"{difference}; a dataset keeps it: choose another slug"
        )
    if dataset.schema_uri == address:
        return Step(Action.KEEP, "dataset", slug)
    before, after = SchemaUri.parse(dataset.schema_uri), SchemaUri.parse(address)
    if before.name != after.name or before.version > after.version:
        detail = f"it follows {before}, and can only move to a later version of {before.name}"
        return Step(Action.CONFLICT, "dataset", slug, detail)
    if changes := incompatibilities(check_document(dataset.document), check_document(document)):
        first = changes[0]
        detail = f"{after} is not compatible with {before}: at {first.pointer or 'the top'}, {first.reason}"
        return Step(Action.CONFLICT, "dataset", slug, detail)
    detail = f"schema {before} → {after}"
    return Step(Action.CHANGE, "dataset", slug, detail, partial(steps.move_dataset, slug, address))


def _schema_of(
    slug: str, part: DatasetPart, addresses: Mapping[str, tuple[str, str]], existing: _Existing
) -> tuple[str, str]:
    """Address and document of the schema that a dataset is to follow."""
    name = part.schema_name
    if name in addresses:
        return addresses[name]
    address = SchemaUri.parse(name)
    try:
        return name, existing.schemas[address.name][address.version]
    except KeyError:
        raise UserError(f"datasets.{slug}: {name} is not published") from None


def _lasting_difference(part: DatasetPart, dataset: Dataset) -> str:
    """The difference in what a dataset keeps from its creation on; empty if there is none."""
    if part.kind != dataset.kind:
        return f"it is one of {dataset.kind}, not of {part.kind}"
    if part.on_invalid != dataset.on_invalid:
        return f"on_invalid is {dataset.on_invalid}, not {part.on_invalid}"
    return ""


def _plan_key(name: str, part: KeyPart, existing: _Existing) -> Step:
    scopes = ", ".join(sorted(part.scopes))
    named = existing.keys.get(name, [])
    if any(key.scopes == part.scopes for key in named):
        return Step(Action.KEEP, "key", name)
    if named:
        have = ", ".join(sorted(named[0].scopes))
        detail = f"its scopes are {have}, not {scopes}: revoke {named[0].key_id}, or choose another name"
        return Step(Action.CONFLICT, "key", name, detail)
    return Step(Action.CREATE, "key", name, f"scopes {scopes}", partial(steps.issue_key, name, part))


def _plan_pipe(definition: Definition, existing: _Existing) -> Step:
    name = definition.pipe
    before = existing.pipes.get(name)
    if before is None:
        detail = f"{definition.other_end} {'from' if definition.delivers else 'into'} {definition.dataset}"
        return Step(Action.CREATE, "pipe", name, detail, partial(steps.create_pipe, definition))
    if before == definition:
        return Step(Action.KEEP, "pipe", name)
    old, new = before.document, definition.document
    differing = sorted(member for member in old.keys() | new.keys() if old.get(member) != new.get(member))
    detail = f"{', '.join(differing)} differs: delete it (pulse pipe delete), then apply again"
    return Step(Action.CONFLICT, "pipe", name, detail)


def _plan_removals(manifest: Manifest, existing: _Existing) -> Iterator[Step]:
    named = {definition.pipe for definition in manifest.pipes}
    for name in sorted(existing.pipes.keys() - named):
        yield Step(Action.REMOVE, "pipe", name, carry_out=partial(steps.delete_pipe, name))
    for name, keys in sorted(existing.keys.items()):
        for key in keys if name not in manifest.keys else ():
            yield Step(Action.REMOVE, "key", name, key.key_id, partial(steps.revoke_key, key.key_id))
    filled = {definition.dataset for definition in manifest.pipes}
    for slug in sorted(existing.datasets.keys() - manifest.datasets.keys() - filled):
        detail = "its files stay"
        yield Step(Action.REMOVE, "dataset", slug, detail, partial(steps.delete_dataset, slug))
