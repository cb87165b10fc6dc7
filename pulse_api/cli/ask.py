"""`pulse ask` and `pulse describe`: questions over a tenant's datasets, and what can be asked for."""

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from pulse_api.cli import chart, complete
from pulse_api.cli.arguments import TenantSlug
from pulse_api.cli.lake import print_rows
from pulse_api.cli.output import AsJson, cell, emit, remark, say, show_table
from pulse_pipelines import registry
from pulse_pipelines.ask import answer, local, meaning, providers, read, record
from pulse_resources import settings
from pulse_resources.errors import UserError

app = typer.Typer()


@app.command("ask")
def ask(
    tenant: TenantSlug,
    question: Annotated[str | None, typer.Argument(help="The question, in English.")] = None,
    recent: Annotated[
        bool, typer.Option("--recent", help="List the tenant's latest questions instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Answer a question over a tenant's datasets, with the query that gave the answer.

    The embedded grammar answers a question only if it understands all of it. Otherwise the command
    prints the parts that it understood.

    Example: pulse ask acme "How many orders were there by country?"
    """
    owner = registry.find_tenant(tenant)
    if recent:
        _list(record.questions(owner, 20))
        return
    if question is None:
        raise UserError("no question is given", fix='pulse ask acme "How many orders were there by country?"')
    with local.queries(owner) as run:
        tokens = settings.load_settings().ask.tokens_per_day
        try:
            result = asyncio.run(
                answer.answer(owner, question, providers.of_settings(), run, tokens_per_day=tokens)
            )
        except read.NotUnderstood as error:
            for line in error.understood:
                remark(f"Understood: {line}")
            for slug, names in error.fields_by_dataset.items():
                remark(f"{slug} has {', '.join(names)}")
            raise
    if as_json:
        emit(result)
        return
    show(Console(), result)


def show(console: Console, result: "answer.Answer") -> None:
    """Print an answer for a person: rows, or a chart where the rows allow one, and how it was computed."""
    if chart.shape(result.rows):
        chart.show(console, result.rows)
    elif result.rows:
        print_rows(
            console, [dict(row) for row in result.rows], ""
        )  # a title is cut to the width of its table
    else:
        say("No rows")
    say(f"understood  {result.understood}")
    for slug, snapshot in result.snapshots.items():
        fresh = result.freshness.get(slug)
        say(f"read        {slug} at snapshot {snapshot}; events landed last {cell(fresh) or 'never'}")
    say(f"query       {result.query_id}, by {result.provider}\n{result.sql}")


@app.command("describe")
def describe(
    tenant: TenantSlug,
    dataset: Annotated[
        str | None,
        typer.Argument(help="The dataset's slug; all by default.", autocompletion=complete.datasets),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what questions can use: measures, dimensions, units and synonyms.

    They come from the schemas of the tenant's datasets and from their rollups.

    Example: pulse describe acme orders
    """
    owner = registry.find_tenant(tenant)
    vocabularies = [meaning.find_meaning(owner, dataset)] if dataset else meaning.of_tenant(owner)
    if as_json:
        emit(vocabularies)
        return
    for vocabulary in vocabularies:
        title = vocabulary.title or ("entities" if vocabulary.of_entities else "events")
        say(
            f"{vocabulary.dataset}: {title}"
            + (f". {vocabulary.description}" if vocabulary.description else "")
        )
        rows = [
            (
                field.name,
                field.kind,
                f"measure ({field.aggregation or 'say how'})" if field.measure else "dimension",
                field.unit,
                ", ".join((field.title, *field.synonyms) if field.title else field.synonyms),
                field.description or ", ".join(field.values[:10]),
            )
            for field in vocabulary.fields
        ]
        show_table(
            ("column", "type", "use", "unit", "also called", "meaning"),
            rows,
            empty="It declares no columns.",
            spare=("meaning", "also called"),
        )
        for rollup in vocabulary.rollups:
            by = f" by {', '.join(rollup.grain)}" if rollup.grain else ""
            where = f" in {rollup.table}" if rollup.table else ", not computed yet"
            say(f"rollup {rollup.name}, each day{by}{where}: {rollup.description}")
    if not vocabularies:
        remark("No datasets yet.")


def _list(questions: "list[record.Question]") -> None:
    rows = (
        (
            q.question_id,
            q.asked_at,
            q.state,
            q.provider,
            len(q.queries),
            q.tokens,
            None if q.seconds is None else f"{q.seconds:.2f}",
            q.key_id,
            q.question,
        )
        for q in questions
    )
    columns = ("id", "asked", "state", "provider", "queries", "tokens", "seconds", "key", "question")
    show_table(columns, rows, empty="No questions yet", spare=("key", "tokens"))
