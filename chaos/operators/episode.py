"""Episode: a schedule run on new tenants, completed, and checked."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from chaos.operators import cast
from chaos.operators.acts import ACTS
from chaos.operators.closing import Closing
from chaos.operators.processes import Ended, carry_out
from chaos.operators.schedule import AT_A_TIME, EVERYONE, Round, Schedule, Step
from chaos.operators.world import Receipt, World
from chaos.oracle import Finding


class Episode:
    """One schedule on its own tenants.

    Args:
        schedule: the steps to run.
        api_url: URL of the HTTP API; without it nothing is sent through the API.
        report_progress: called after each round.
    """

    def __init__(
        self,
        schedule: Schedule,
        api_url: str | None = None,
        report_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.schedule = schedule
        self.places: Counter[str] = Counter()
        """Counts of steps by kind and result."""
        self.events = 0
        """Messages in the topics, including replays."""
        self.findings: list[Finding] = []
        self._api_url, self._report = api_url, report_progress
        self._worlds: list[World] = []
        self._owed: list[tuple[int, Step]] = []
        """Killed commands, with the round in which they are repeated."""

    def run(self) -> None:
        """Run the schedule and check the result."""
        self._worlds = cast.make_worlds()
        for number, steps in enumerate(self.schedule.rounds):
            due = tuple(step for at, step in self._owed if at <= number)
            self._owed = [(at, step) for at, step in self._owed if at > number]
            self._round(number, steps + due)
            self._report()
        closing = Closing(self._worlds, self._command)
        closing.run([step for _, step in self._owed])
        self.findings += closing.findings
        for world in self._worlds:
            self.events += len(world.arrived)
            self.places.update({f"collect: {status}": times for status, times in world.answers.items()})

    def _round(self, number: int, steps: Round) -> None:
        """Run a round's commands concurrently with the harness's actions."""
        began = time.monotonic()

        def command(step: Step) -> Ended:
            time.sleep(max(0.0, began + step.after_s - time.monotonic()))
            return self._command(step)

        with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="command") as pool:
            running = [pool.submit(command, step) for step in steps if step.action not in ACTS]
            for step in steps:
                if act := ACTS.get(step.action):
                    time.sleep(max(0.0, began + step.after_s - time.monotonic()))
                    act(self._worlds[step.tenant], step, self._api_url)
                    self.places[step.action] += 1
        ended = [future.result() for future in running]
        for lost in {step.tenant for step in steps if step.action == "lose"}:
            ended.append(self._accepted(lost))
        for world in self._worlds:
            world.record_round()
        for answer in ended:
            self._note(answer, number)

    def _command(self, step: Step) -> Ended:
        """Run one command; its possible changes are recorded first."""
        worlds = self._worlds if step.tenant == EVERYONE else [self._worlds[step.tenant]]
        world, a = worlds[0], step.arguments
        match step.action:
            case "move" | "create":
                world.rounds.expect(a["slug"], a["version"])
            case "erase":
                world.erasures_begun.add((a["slug"], a["person"]))
                world.unfinished.add((a["slug"], a["person"]))
            case "quota":
                world.quotas.append(a["records"])
            case "retain" if a["data"] == "raw objects":
                world.retained = True
        ended = carry_out(step, [world.tenant for world in worlds])
        if step.action == "erase" and ended.how == "done":
            covers = {int(partition): end for partition, end in ended.result["covers"].items()}
            world.receipts.append(Receipt(a["slug"], a["person"], covers, ended.result["dataset"]))
            world.unfinished.discard((a["slug"], a["person"]))
        return ended

    def _accepted(self, tenant: int) -> Ended:
        """Accept a loss at the latest when its round ends: the tenant's ingestion is stopped until then."""
        for _ in range(10):
            ended = self._command(Step("accept", tenant))
            if ended.how == "done" or ended.why == "Conflict":
                self._worlds[tenant].accepted = True
                return ended
            time.sleep(0.5)
        return replace(ended, how="failed")

    def _note(self, ended: Ended, number: int) -> None:
        step = ended.step
        why = f" ({ended.why})" if ended.why else ""
        self.places[f"{step.action}: {ended.how}{why}"] += 1
        again = ended.how == "killed" or (step.action == "erase" and ended.why == "Transient")
        if again:
            self._owed.append((number + max(1, step.later), replace(step, after_s=0.5, blow=None)))
        elif ended.how in ("failed", "hung", "terminal") and not self._explained(ended):
            self._find("a command that ended as none should", step, str(ended))
        if step.action == "upkeep" and ended.how == "done":
            self.places.update({f"upkeep of a table: {o}": n for o, n in ended.result["outcomes"].items()})
            for wrong in self._wrong_upkeep(ended):
                self._find("upkeep that failed", step, wrong)

    def _explained(self, ended: Ended) -> bool:
        """Whether a failure was expected."""
        step, world = ended.step, self._worlds[ended.step.tenant]
        if step.action == "ingest":
            return ended.how != "hung"  # an attempt may fail; the end checks that everything settles
        slug = step.arguments.get("slug")
        absent = slug is not None and world.rounds.versions(slug, ended.ended)[1]
        incomplete = world.retained or any(name == slug for name, _ in world.unfinished)
        return ended.how == "terminal" and (absent or (step.action == "backfill" and incomplete))

    def _wrong_upkeep(self, ended: Ended) -> Iterator[str]:
        worlds = {world.tenant.slug: world for world in self._worlds}
        for answer in ended.result["failed"]:
            world, slug = worlds[answer["tenant"]], answer["dataset"]
            absent = slug is not None and world.rounds.versions(slug, ended.ended)[1]
            if answer["outcome"] == "rolled_back" or not (world.hostile or absent):
                yield str(answer)

    def _find(self, kind: str, step: Step, detail: str) -> None:
        slug = "all" if step.tenant == EVERYONE else self._worlds[step.tenant].tenant.slug
        self.findings.append(Finding(kind, slug, detail))
