"""`pulse state`: the newest event of each key of a dataset of events, and its windows."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from pulse_api.cli.arguments import DatasetSlug, TenantSlug, duration, moment
from pulse_api.cli.output import AsJson, emit, emit_or_say, remark, show_table
from pulse_pipelines import registry
from pulse_pipelines.domain.quota import STATE_BUCKETS, STATE_KEYS
from pulse_pipelines.domain.windows import Windows, plain
from pulse_pipelines.states import declared_states, state_build

if TYPE_CHECKING:
    from pulse_pipelines.states.declared_windows import KeyWindows

app = typer.Typer(no_args_is_help=True, help="States: the newest event per key of a dataset of events.")


@app.command("declare")
def declare_state(
    tenant: TenantSlug,
    slug: DatasetSlug,
    latest_by: Annotated[str, typer.Argument(help="The key: a property that is a text or an integer.")],
    max_keys: Annotated[int, typer.Option(help="Maximum number of keys.")] = STATE_KEYS,
    windows: Annotated[
        bool, typer.Option("--windows", help="Count each key's events of the last 5 minutes, hour and day.")
    ] = False,
    sums: Annotated[
        list[str] | None, typer.Option("--sum", help="Also sum this property in these windows. Repeatable.")
    ] = None,
    session_gap: Annotated[
        str | None, typer.Option(help="Keep sessions, which end after this long without an event: 30m.")
    ] = None,
    max_buckets: Annotated[
        int, typer.Option(help="Maximum number of minutes of keys in windows.")
    ] = STATE_BUCKETS,
    as_json: AsJson = False,
) -> None:
    """Declare a dataset's state and build it from the table; if it exists, continue building it.

    Example: pulse state declare acme flights tail_number --windows --sum passengers --session-gap 30m
    """
    owner = registry.find_tenant(tenant)
    declared = None
    if windows or sums or session_gap:
        gap = None if session_gap is None else int(duration(session_gap).total_seconds())
        declared = Windows(tuple(sums or ()), gap, max_buckets)
    declared_states.declare(owner, slug, latest_by, max_keys, declared)
    state_build.build(owner, slug, lambda done, of: remark(f"{done:,} of {of:,} files are read"))
    state = declared_states.find(owner, slug)
    emit_or_say(state, f"the state by {state.latest_by} has {state.keys:,} keys", as_json)


@app.command("show")
def show_state(
    tenant: TenantSlug,
    slug: DatasetSlug,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of keys to show.")] = 20,
    after: Annotated[str | None, typer.Option(help="Show the keys after this one.")] = None,
    key: Annotated[str | None, typer.Option(help="Show this key only, and its windows.")] = None,
    as_of: Annotated[
        datetime | None,
        typer.Option(
            parser=moment, metavar="TIME", help="Time at which windows end, e.g. 2h; by default now."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a dataset's state: the newest event per key, in the order of keys.

    Example: pulse state show acme flights --limit 5
    """
    owner = registry.find_tenant(tenant)
    about = None
    if key is not None:
        newest = [declared_states.newest(owner, slug, key, as_of)]
    else:
        about, newest = declared_states.page(owner, slug, after, limit)
    if as_json:
        emit({"about": about, "state": newest} if about else newest[0])
        return
    rows = ((event.key, event.timestamp, event.event_id, event.data or "(too large)") for event in newest)
    title = about.latest_by if about else "key"
    show_table((title, "timestamp", "event", "data"), rows, empty="No key yet", spare=("event",))
    if about is None:
        _show_windows(newest[0].windows)
        return
    remark(f"{about.keys:,} of at most {about.max_keys:,} keys; left out {about.left_out:,} times")
    if (windows := about.windows) is not None:
        since = f", from {windows.kept_from} on" if windows.full else ""
        remark(f"windows: {windows.buckets:,} of at most {windows.max_buckets:,} minutes of keys{since}")
    if not (about.complete and (windows is None or windows.complete)):
        remark("It does not have all events yet: pulse state declare builds it")


@app.command("drop")
def drop_state(tenant: TenantSlug, slug: DatasetSlug, as_json: AsJson = False) -> None:
    """Drop a dataset's state. The events stay in the table.

    Example: pulse state drop acme flights
    """
    column = declared_states.drop(registry.find_tenant(tenant), slug)
    emit_or_say({"dropped": column}, f"the state by {column} is dropped", as_json)


def _show_windows(current: "KeyWindows | None") -> None:
    if current is None:
        return
    rows = []
    for name, window in current.windows.items():
        if window is None:
            rows.append((name, "", "begins before the minutes that are kept"))
            continue
        sums = ", ".join(f"{column} {plain(total)}" for column, total in window.sums.items())
        rows.append((name, f"{window.events:,}", sums))
    if (session := current.session) is not None:
        state = "open" if session.open else "ended"
        state += "" if session.complete else ", and may have begun earlier"
        rows.append(("session", f"{session.events:,}", f"{session.first} to {session.last}, {state}"))
    show_table(("window", "events", "about"), rows, empty="No windows")
    remark(f"Windows end at {current.to}")
    if not current.complete:
        remark("They do not have all events yet: pulse state declare builds them")
