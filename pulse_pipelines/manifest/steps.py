"""Steps of a plan: what is created, changed or removed for a tenant, each by the registry's own function."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pulse_pipelines import moves, pipes, registry
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.manifest.document import DatasetPart, KeyPart, LimitsPart


class Action(StrEnum):
    KEEP = "keep"
    CREATE = "create"
    CHANGE = "change"
    REMOVE = "remove"
    CONFLICT = "conflict"
    """The manifest differs from the tenant in what cannot be changed."""


@dataclass(frozen=True)
class Outcome:
    """Results of a step that its plan does not have."""

    remark: str = ""
    key: str | None = None
    """The text of a new key: it is shown once."""


def _do_nothing(tenant: Tenant) -> Outcome:
    return Outcome()


@dataclass(frozen=True)
class Step:
    action: Action
    kind: str
    """tenant, limits, schema, dataset, key or pipe."""
    name: str
    detail: str = ""
    """The difference, in words; of a conflict, what to do."""
    carry_out: Callable[[Tenant], Outcome] = _do_nothing

    @property
    def changes(self) -> bool:
        return self.action is not Action.KEEP

    def __str__(self) -> str:
        return f"{self.action} {self.kind} {self.name}" + (f": {self.detail}" if self.detail else "")


def set_limits(limits: LimitsPart, tenant: Tenant) -> Outcome:
    registry.quotas.set_limits(tenant, **limits.model_dump(exclude_none=True))
    return Outcome()


def publish_schema(name: str, document: str, tenant: Tenant) -> Outcome:
    return Outcome(registry.publish_schema(tenant, name, document).schema_uri)


def create_dataset(slug: str, part: DatasetPart, schema_uri: str, tenant: Tenant) -> Outcome:
    registry.create_dataset(tenant, slug, schema_uri, part.name, part.on_invalid, part.kind)
    return Outcome()


def move_dataset(slug: str, schema_uri: str, tenant: Tenant) -> Outcome:
    moved = moves.ask(tenant, slug, schema_uri)
    if isinstance(moved, Dataset):
        return Outcome()
    return Outcome(f"a run rewrites its data files; follow it: pulse dataset follow {tenant.slug} {slug}")


def delete_dataset(slug: str, tenant: Tenant) -> Outcome:
    return Outcome(f"its files stay: {registry.delete_dataset(tenant, slug).metadata_location}")


def issue_key(name: str, part: KeyPart, tenant: Tenant) -> Outcome:
    return Outcome(key=registry.keys.issue_key(tenant, name, part.scopes).text)


def revoke_key(key_id: str, tenant: Tenant) -> Outcome:
    registry.keys.revoke_key(tenant, key_id)
    return Outcome()


def create_pipe(definition: Definition, tenant: Tenant) -> Outcome:
    pipes.create(tenant, definition)
    return Outcome()


def delete_pipe(name: str, tenant: Tenant) -> Outcome:
    pipes.delete(tenant, name)
    return Outcome()
