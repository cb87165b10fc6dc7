"""Settings of the two doors: the HTTP API, and the control room, which is Dagster's web server."""

from datetime import date
from typing import Literal

from pydantic import BaseModel, Field, IPvAnyNetwork, SecretStr

_PUBLIC_URL = Field(default="", pattern=r"^(https?://[^\s?#]*[^\s?#/])?$")


def local_url(host: str, port: int) -> str:
    """Where a client on this machine reaches a server that listens on `host`."""
    everywhere = host in ("0.0.0.0", "::")  # noqa: S104
    return f"http://{'127.0.0.1' if everywhere else host}:{port}"


class ApiSettings(BaseModel):
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65_535)
    public_url: str = _PUBLIC_URL
    """Where people reach the API, for links; empty: where this machine does."""
    health_port: int = Field(default=0, ge=0, le=65_535)
    """A second port for /healthz, /readyz and /metrics alone, which answers however full the first one is;
    `pulse up` chooses one. 0: none."""
    max_connections: int = Field(default=1_000, ge=1)
    """One more is answered with 503 ..."""
    max_connections_per_address: int = Field(default=250, ge=0)
    """... and so is one more of the same address (IPv6: /64). 0: no limit, as behind a proxy, which has one
    address for all."""
    head_seconds: float = Field(default=10.0, gt=0)
    """How long the headers of a request may take to arrive ..."""
    body_seconds: float = Field(default=60.0, gt=0)
    """... then its body; 408 after either ..."""
    answer_seconds: float = Field(default=60.0, gt=0)
    """... and how long a client may stop to read its answer."""
    keep_alive_seconds: int = Field(default=5, ge=1)
    """A connection without a request is closed after this."""
    cors_origins: list[str] = Field(default_factory=list)
    """Origins whose pages may call the API; none by default."""
    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1_024)
    """Of a request, also after decompression."""
    max_compression: int = Field(default=100, ge=1)
    """How many times as large as it was sent a compressed body may be, beyond its first 2 MiB."""
    max_held_bytes: int = Field(default=256 * 1024 * 1024, ge=1_024)
    """Of the bodies of all requests under way: one more is answered with 503 ..."""
    max_held_bytes_per_tenant: int = Field(default=64 * 1024 * 1024, ge=1_024)
    """... and with 429 beyond this of its tenant."""
    max_events: int = Field(default=10_000, ge=1)
    """Of one collect request; members of a gzip file, too."""
    max_values: int = Field(default=500_000, ge=1_000)
    """JSON values of one request, by its commas and opening brackets: decoded they take some 50 MB."""
    delivery_timeout_seconds: float = Field(default=10.0, gt=0)
    """How long the broker may take to acknowledge before the answer is 503."""
    max_unacknowledged_events: int = Field(default=100_000, ge=1)
    """Events in flight to the broker; more are answered with 503 and Retry-After."""
    cache_seconds: float = Field(default=30.0, ge=0)
    """How long keys, schemas and limits are kept if no change is announced."""
    access_log: bool = True
    """A line per request on standard output, without payloads and keys."""
    open_metrics: bool = False
    """Whether /metrics, which names tenants, may be read without an operator's key."""
    preview_seconds: float = Field(default=10.0, gt=0)
    """Time limit of one preview."""
    preview_memory: str = "512MB"
    """Memory limit of one preview."""
    preview_parallelism: int = Field(default=2, ge=1)
    """Previews that run at a time, each in a process of its own; half of them of one tenant."""
    change_parallelism: int = Field(default=2, ge=1)
    """Schemas that are published, datasets that are created, moved and deleted, and dead letters that are
    replayed at a time, alike."""
    parallelism: int = Field(default=6, ge=1)
    """Requests other than previews and collecting that run at a time, half of them of one tenant."""
    rate_look_seconds: float = Field(default=1.0, gt=0)
    """How often the API processes share tenants' rates out anew; what one has not said in three times as long
    is void."""
    previews_per_second: float = Field(default=10.0, ge=-1)
    """Previews of one tenant, per process; -1: no limit ..."""
    other_requests_per_second: float = Field(default=50.0, ge=-1)
    """... and its requests other than previews and collecting ..."""
    changes_per_second: float = Field(default=10.0, ge=-1)
    """... and those of them that change something, two seconds' worth at once: each is work for Postgres and
    the object store, which all tenants share ..."""
    burst_seconds: float = Field(default=2.0, ge=1)
    """... and of the others so many seconds' worth, after a rest; then the answer is 429."""
    max_waiting: int = Field(default=32, ge=1)
    """Requests of one tenant that wait for their turn, of each kind: one more is answered with 429 ..."""
    wait_seconds: float = Field(default=10.0, gt=0)
    """... and one that waited this long with 503."""

    @property
    def linked_url(self) -> str:
        """What links to the API begin with."""
        return self.public_url or local_url(self.host, self.port)


class LakeSettings(BaseModel):
    """The REST catalog; limits of connections and requests are those of the API, for each of the two."""

    host: str = "127.0.0.1"
    port: int = Field(default=8181, ge=1, le=65_535)
    public_url: str = _PUBLIC_URL
    """Where engines reach the catalog; empty: where this machine does."""
    health_port: int = Field(default=0, ge=0, le=65_535)
    """As the API's."""
    token_secret: SecretStr | None = Field(default=None, min_length=16)
    """Signs the tokens that clients get for a key; the same for all processes of the service."""
    token_seconds: int = Field(default=3_600, ge=60)
    """How long such a token lasts, if the key does; revoking the key ends it at once."""

    @property
    def linked_url(self) -> str:
        """The address that engines are told."""
        return self.public_url or local_url(self.host, self.port)


class SqlSettings(BaseModel):
    """SQL of whoever has a key: each query has a process of its own that reaches nothing but its tables."""

    enabled: bool = True
    without_landlock: bool = False
    """Whether queries may run where the kernel has no Landlock (Linux before 6.7): then DuckDB's locks, the
    key of the object store and the list of what SQL may name are all that holds a caller."""
    seconds: float = Field(default=30.0, gt=0)
    """Time limit of one query."""
    memory_mb: int = Field(default=512, ge=64)
    """Memory limit of one query."""
    rows: int = Field(default=100_000, ge=1)
    """Most rows of a result ..."""
    result_bytes: int = Field(default=32 * 1024 * 1024, ge=1_024)
    """... and bytes, as it is sent."""
    parallelism: int = Field(default=2, ge=1)
    """Queries that run at a time, in each API process; half of them of one tenant."""
    ready: int = Field(default=2, ge=0)
    """Processes that wait for queries."""
    per_second: float = Field(default=10.0, ge=-1)
    """Queries of one tenant, per process; -1: no limit."""
    held_bytes: int = Field(default=256 * 1024 * 1024, ge=1_024)
    """Of results that are being sent: while there are more, no query begins; a quarter for one tenant."""
    look_seconds: float = Field(default=0.5, gt=0)
    """How often running queries are compared with what was cancelled elsewhere, and with keys in force."""
    keep_days: float = Field(default=90.0, gt=1)
    """Records of queries are kept this long."""


class AskSettings(BaseModel):
    """Questions in plain language: by the embedded grammar, or by a model that a setting names."""

    provider: Literal["grammar", "anthropic", "openai"] = "grammar"
    """`openai`: any endpoint of that form."""
    url: str = ""
    """Of the model's endpoint; by default that of the provider."""
    model: str = ""
    """The model's name, as its provider knows it."""
    key: SecretStr = SecretStr("")
    """What opens the model's endpoint."""
    seconds: float = Field(default=30.0, gt=0)
    """Time limit of one answer of a model."""
    per_second: float = Field(default=5.0, ge=-1)
    """Questions of one tenant, per process; -1: no limit."""
    parallelism: int = Field(default=4, ge=1)
    """Questions that are answered at a time, in each API process; half of them of one tenant."""
    tokens_per_day: int = Field(default=0, ge=0)
    """That models may read and write for one tenant in 24 hours; 0: no limit."""


class DagsterSettings(BaseModel):
    partition_days: int = Field(default=400, ge=1)
    """Days back that the grid of the dataset assets has at least; it begins with a month, so that it moves
    once a month. Earlier events land, too, without a cell."""
    partitions_start: date | None = None
    """A later first day of the grid, such as when the installation began."""
    owners: list[str] = Field(default_factory=lambda: ["team:platform"])
    """Owners of the dataset assets: e-mail addresses, or `team:` and a name."""
    log_days: float = Field(default=30.0, gt=0)
    """What runs and ticks write (standard output and error) is kept this long after the last line."""
    host: str = "127.0.0.1"
    webserver_port: int = Field(default=3000, ge=1, le=65_535)
    public_url: str = _PUBLIC_URL
    """Where people reach the UI, for the links in alerts; empty: where this machine does."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """Names, without a port, by which the UI may be asked, beside localhost and `host`."""
    token: SecretStr | None = Field(default=None, min_length=16)
    """Who presents it to the UI may change things."""
    read_only_token: SecretStr | None = Field(default=None, min_length=16)
    """Who presents it may look."""
    session_hours: float = Field(default=168.0, gt=0)
    """How long a browser is known after it presented a token; a new token ends it at once."""
    proxy_header: str = ""
    """Header in which a proxy that signs people in (OIDC, say) names them; nobody else may set it there."""
    proxy_addresses: list[IPvAnyNetwork] = Field(default_factory=list)
    """Where such a proxy asks from; from elsewhere the header says nothing."""
    proxy_operators: list[str] = Field(default_factory=list)
    """Who of them may change things, `*` for all; the others may look."""

    @property
    def linked_url(self) -> str:
        """What links to the UI begin with."""
        return self.public_url or local_url(self.host, self.webserver_port)
