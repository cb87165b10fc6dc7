"""Settings of the HTTP services: API, REST catalog, SQL, and control room (Dagster's web server)."""

from datetime import date
from typing import Literal

from pydantic import BaseModel, Field, IPvAnyNetwork, SecretStr

_PUBLIC_URL = Field(default="", pattern=r"^(https?://[^\s?#]*[^\s?#/])?$")


def local_url(host: str, port: int) -> str:
    """URL under which a client on this machine reaches a server that listens on `host`."""
    everywhere = host in ("0.0.0.0", "::")  # noqa: S104
    return f"http://{'127.0.0.1' if everywhere else host}:{port}"


def is_of_host(origin: str, host: str) -> bool:
    """Whether a page of this origin is of the host that the request names (`Host`).

    The scheme is not compared: a proxy may have ended TLS.
    """
    return origin.partition("://")[2].lower() == host.lower() != ""


class ApiSettings(BaseModel):
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65_535)
    public_url: str = _PUBLIC_URL
    """Public URL of the API, for links; empty: the local address."""
    health_port: int = Field(default=0, ge=0, le=65_535)
    """Second port that serves only /healthz, /readyz and /metrics, so that they answer when the first one is
    full; `pulse up` chooses one. 0: none."""
    max_connections: int = Field(default=1_000, ge=1)
    """Connections at a time; more are answered with 503 ..."""
    max_connections_per_address: int = Field(default=250, ge=0)
    """... and so are more from one address (IPv6: /64). 0: no limit, as behind a proxy, which has one address
    for all."""
    head_seconds: float = Field(default=10.0, gt=0)
    """How long the headers of a request may take to arrive ..."""
    body_seconds: float = Field(default=60.0, gt=0)
    """... then its body; 408 after either ..."""
    answer_seconds: float = Field(default=60.0, gt=0)
    """... and how long a client may pause reading its response."""
    keep_alive_seconds: int = Field(default=5, ge=1)
    """Seconds after which an idle connection is closed."""
    cors_origins: list[str] = Field(default_factory=list)
    """Origins whose pages may call the API; none by default. /mcp refuses requests of other pages than
    these and those of its own host."""
    cors_origins_of: dict[str, list[str]] = Field(default_factory=dict)
    """By tenant: origins whose pages may send events with its keys, as `{"acme": ["https://shop.example"]}`."""
    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1_024)
    """Maximum body of a request, also after decompression."""
    max_compression: int = Field(default=100, ge=1)
    """Maximum compression ratio of a request body beyond its first 2 MiB."""
    max_held_bytes: int = Field(default=256 * 1024 * 1024, ge=1_024)
    """Bytes of all request bodies held at a time: more are answered with 503 ..."""
    max_held_bytes_per_tenant: int = Field(default=64 * 1024 * 1024, ge=1_024)
    """... and with 429 beyond this for one tenant."""
    max_events: int = Field(default=10_000, ge=1)
    """Maximum number of events per collect request; members of a gzip file, too."""
    max_values: int = Field(default=500_000, ge=1_000)
    """Maximum JSON values per request, by commas and opening brackets: decoded they take some 50 MB."""
    delivery_timeout_seconds: float = Field(default=10.0, gt=0)
    """Seconds for the broker to acknowledge before the response is 503."""
    max_unacknowledged_events: int = Field(default=100_000, ge=1)
    """Unacknowledged events; more are answered with 503 and Retry-After."""
    max_keys: int = Field(default=1_000, ge=-1)
    """Keys in force of a tenant, all of which are read again after each change of one; -1: no limit."""
    max_published_schema_bytes: int = Field(default=64 * 1024 * 1024, ge=1_048_576)
    """Bytes of all schema versions that a tenant has published, each of 4,096 at least."""
    cache_seconds: float = Field(default=30.0, ge=0)
    """Seconds for which keys, schemas and limits are cached unless a change is announced."""
    access_log: bool = True
    """A line per request on standard output, without payloads and keys."""
    open_metrics: bool = False
    """Whether /metrics, which names tenants, may be read without an operator's key."""
    preview_seconds: float = Field(default=10.0, gt=0)
    """Time limit of one preview."""
    preview_memory: str = "512MB"
    """Memory limit of one preview."""
    preview_parallelism: int = Field(default=2, ge=1)
    """Concurrent previews, each in a process of its own; at most half of them for one tenant."""
    change_parallelism: int = Field(default=2, ge=1)
    """Concurrent changes: schemas published, datasets created, moved and deleted, dead letters replayed."""
    long_change_parallelism: int = Field(default=4, ge=1)
    """Concurrent changes, one of a tenant, that look at its sources or read a table: pipes created and
    deleted, indexes and states declared ..."""
    long_change_seconds: float = Field(default=30.0, gt=0)
    """... and how long one may take: a source that does not answer has no longer."""
    parallelism: int = Field(default=6, ge=1)
    """Concurrent requests other than previews and collecting; at most half of them for one tenant."""
    rate_look_seconds: float = Field(default=1.0, gt=0)
    """How often the API processes redistribute tenants' rates; the report of a process expires after three
    times as long."""
    previews_per_second: float = Field(default=10.0, ge=-1)
    """Previews per second of one tenant, per process; -1: no limit ..."""
    other_requests_per_second: float = Field(default=50.0, ge=-1)
    """... other requests except collecting ..."""
    changes_per_second: float = Field(default=10.0, ge=-1)
    """... and those among them that change something, with bursts of two seconds' worth: each loads Postgres
    and the object store, which all tenants share ..."""
    burst_seconds: float = Field(default=2.0, ge=1)
    """... other requests have bursts of so many seconds' worth; beyond that the response is 429."""
    max_waiting: int = Field(default=32, ge=1)
    """Waiting requests of one tenant and kind: more are answered with 429 ..."""
    wait_seconds: float = Field(default=10.0, gt=0)
    """... and those that waited this long with 503."""

    @property
    def linked_url(self) -> str:
        """Base URL of links to the API."""
        return self.public_url or local_url(self.host, self.port)


class LakeSettings(BaseModel):
    """Settings of the REST catalog; the API's limits on connections and requests apply to each of the two."""

    host: str = "127.0.0.1"
    port: int = Field(default=8181, ge=1, le=65_535)
    public_url: str = _PUBLIC_URL
    """Public URL of the catalog for engines; empty: the local address."""
    health_port: int = Field(default=0, ge=0, le=65_535)
    """As for the API."""
    token_secret: SecretStr | None = Field(default=None, min_length=16)
    """Secret that signs the tokens issued for a key; shared by all processes of the service."""
    token_seconds: int = Field(default=3_600, ge=60)
    """Lifetime of such a token, limited by its key's; revoking the key ends it at once."""
    invalid_per_second: float = Field(default=10.0, ge=-1)
    """Invalid requests per second of one tenant, per process, with bursts of `burst_seconds` of the API: each
    takes as long as a valid one; -1: no limit."""

    @property
    def linked_url(self) -> str:
        """Address of the catalog that engines are given."""
        return self.public_url or local_url(self.host, self.port)


class SqlSettings(BaseModel):
    """Settings of SQL for API keys: each query runs in a process of its own that reaches only its tables."""

    enabled: bool = True
    without_landlock: bool = False
    """Allow queries on kernels without Landlock (Linux before 6.7): then only DuckDB's locks, the object-
    store credentials and the list of allowed SQL confine a query."""
    seconds: float = Field(default=30.0, gt=0)
    """Time limit of one query."""
    memory_mb: int = Field(default=512, ge=64)
    """Memory limit of one query."""
    rows: int = Field(default=100_000, ge=1)
    """Maximum rows of a result ..."""
    result_bytes: int = Field(default=32 * 1024 * 1024, ge=1_024)
    """... and its maximum bytes as sent."""
    parallelism: int = Field(default=2, ge=1)
    """Concurrent queries per API process; at most half of them for one tenant."""
    ready: int = Field(default=2, ge=0)
    """Idle processes kept ready for queries."""
    per_second: float = Field(default=10.0, ge=-1)
    """Queries per second of one tenant, per process; -1: no limit."""
    held_bytes: int = Field(default=256 * 1024 * 1024, ge=1_024)
    """Bytes of results being sent: above this no query begins; a quarter of it for one tenant."""
    look_seconds: float = Field(default=0.5, gt=0)
    """How often running queries are checked against cancellations elsewhere and against valid keys."""
    keep_days: float = Field(default=90.0, gt=1)
    """How long records of queries are kept."""


class AskSettings(BaseModel):
    """Questions in plain language: by the embedded grammar, or by a model that a setting names."""

    provider: Literal["grammar", "anthropic", "openai"] = "grammar"
    """`openai`: any endpoint of that form."""
    url: str = ""
    """URL of the model's endpoint; by default that of the provider."""
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
    samples: int = Field(default=0, ge=0, le=20)
    """Rows of each dataset that a question names, which a model is shown; 0: none leaves the installation."""


class DagsterSettings(BaseModel):
    partition_days: int = Field(default=400, ge=1)
    """Minimum number of past days in the grid of the dataset assets; it begins with the first of a month, so
    that it moves once a month. Earlier events land too, without a cell."""
    partitions_start: date | None = None
    """Later first day of the grid, for example the installation's first day."""
    owners: list[str] = Field(default_factory=lambda: ["team:platform"])
    """Owners of the dataset assets: e-mail addresses, or `team:` and a name."""
    log_days: float = Field(default=30.0, gt=0)
    """Days for which output of runs and ticks (standard output and error) is kept after its last line."""
    host: str = "127.0.0.1"
    webserver_port: int = Field(default=3000, ge=1, le=65_535)
    public_url: str = _PUBLIC_URL
    """Public URL of the UI, for links in alerts; empty: the local address."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """Host names, without a port, under which the UI may be requested, besides localhost, `host` and that of
    `public_url`."""
    token: SecretStr | None = Field(default=None, min_length=16)
    """Token that allows changes in the UI."""
    read_only_token: SecretStr | None = Field(default=None, min_length=16)
    """Token that allows reading the UI."""
    session_hours: float = Field(default=168.0, gt=0)
    """How long a browser session lasts after signing in with a token; changing the token ends it at once."""
    proxy_header: str = ""
    """Header in which an authenticating proxy (OIDC, say) names the user; only that proxy may set it."""
    proxy_addresses: list[IPvAnyNetwork] = Field(default_factory=list)
    """Addresses of such proxies; the header is ignored from any other address."""
    proxy_operators: list[str] = Field(default_factory=list)
    """Users in that header who may change things, `*` for all; the others may only read."""

    @property
    def linked_url(self) -> str:
        """Base URL of links to the UI."""
        return self.public_url or local_url(self.host, self.webserver_port)
