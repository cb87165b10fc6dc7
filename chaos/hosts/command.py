"""Command `chaos hosts`: Pulse on five hosts, which fail or are cut off from each other, one or two at once.

The hosts are Linux namespaces with nothing in common but a network; it takes root. Two clients send through
both front hosts the whole time, each request twice, and repeat what is refused. After each fault all events
have to be rows exactly once, as an engine on a host of its own reads them, and the ledger has to be balanced.
"""

import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from chaos.hosts.deployed import deployed
from chaos.hosts.faults import draw
from chaos.hosts.network import missing
from chaos.hosts.tenant import make_tenant

app = typer.Typer(add_completion=False, help=__doc__)
console = Console(highlight=False, soft_wrap=True)


@app.callback(invoke_without_command=True)
def run(
    faults: Annotated[int, typer.Option(help="Number of faults, one after the other.", min=1)] = 8,
    at_once: Annotated[int, typer.Option(help="Faults at a time.", min=1, max=2)] = 1,
    seconds: Annotated[float, typer.Option(help="Duration of each fault.", min=1.0)] = 20.0,
    seed: Annotated[
        int | None, typer.Option(help="Of the faults; if omitted, it is drawn.", show_default=False)
    ] = None,
) -> None:
    """Cause faults, and print what became of the events; exit code 1 when anything is not as it must be.

    Example: python -m chaos hosts --faults 4 --at-once 2 --seed 7
    """
    if reason := missing():
        console.print(f"Hosts cannot be made here: {reason}")
        raise typer.Exit(2)
    seed = random.randrange(10_000) if seed is None else seed
    rng, wrong = random.Random(seed), 0
    console.print(f"Seed {seed}. Installing and starting Pulse on the hosts")
    with tempfile.TemporaryDirectory(prefix="pulse-hosts-") as name:
        (image := Path(name, "image")).mkdir()
        (folder := Path(name, "hosts")).mkdir()
        with deployed(folder, image) as deployment, make_tenant(deployment) as tenant:
            for number in range(1, faults + 1):
                chosen = draw(rng, at_once)
                words = ", and ".join(map(str, chosen))
                console.print(f"{number} of {faults}: {words}, for {seconds:g} s")
                with tenant.sending() as settle:
                    with ExitStack() as happening:
                        for fault in chosen:
                            happening.enter_context(fault.happening(deployment))
                        time.sleep(seconds)
                    settle()
                refused = ", ".join(f"{count} {kind}" for kind, count in tenant.refusals.items())
                findings = tenant.findings()
                wrong += len(findings)
                console.print(
                    f"  {len(tenant.sent):,} rows {tenant.recovered_s:.0f} s after its end; "
                    f"refused meanwhile: {refused or 'none'}"
                )
                for finding in findings:
                    console.print(f"  WRONG: {finding}")
    console.print("Everything is as it must be" if not wrong else f"{wrong} findings")
    raise typer.Exit(1 if wrong else 0)
