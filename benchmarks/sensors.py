"""Dagster's sensors, switched off and on as in the UI, and waiting for runs."""

import time
from collections.abc import Callable
from typing import Any

from benchmarks.control_room import ask

INGEST = "ingest_lag"
SENSORS = """query Sensors { repositoriesOrError { ... on RepositoryConnection { nodes {
    name location { name } sensors { name sensorState { id status } } } } } }"""
STOP = """mutation Stop($id: String!) { stopSensor(id: $id) { __typename ... on PythonError { message } } }"""
START = """mutation Start($sensor: SensorSelector!) { startSensor(sensorSelector: $sensor) {
    __typename ... on PythonError { message } } }"""
RUNS = """query Runs($filter: RunsFilter!) { runsOrError(filter: $filter) { ... on Runs { count } } }"""
UNFINISHED = ("QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING")
_PATIENCE_S = 300.0
_QUIET_S = 5.0
"""Idle means that nothing ran for this long: a tick in progress may still launch a run."""

SensorFilter = Callable[[str], bool]
"""Picks sensors by name."""


def stop(chosen: SensorFilter) -> None:
    """Stop sensors, and wait until their runs have ended.

    A tick in progress writes its sensor's state at its end, which would start the sensor again.
    """
    while running := [state["id"] for name, _, state in _sensors() if chosen(name) and _runs_on(state)]:
        for sensor in running:
            answer = ask(STOP, {"id": sensor})["stopSensor"]
            assert answer["__typename"] == "StopSensorMutationResult", answer
        wait_until_idle()


def start(chosen: SensorFilter) -> None:
    for name, selector, state in _sensors():
        if chosen(name) and not _runs_on(state):
            answer = ask(START, {"sensor": selector})["startSensor"]
            assert answer["__typename"] == "Sensor", answer


def wait_until_idle() -> None:
    """Wait until no run is active or starting.

    Raises:
        TimeoutError: runs never stopped.
    """
    began = quiet_since = time.monotonic()
    while (now := time.monotonic()) - quiet_since < _QUIET_S:
        if now - began > _PATIENCE_S:
            raise TimeoutError(f"runs continue for {_PATIENCE_S:.0f} s though the sensors are stopped")
        if _runs({"statuses": UNFINISHED}):
            quiet_since = time.monotonic()
        time.sleep(0.5)


def wait_for_success(job: str) -> None:
    """Wait until a run of this job has succeeded.

    Raises:
        TimeoutError: none succeeded.
    """
    began = time.monotonic()
    while not _runs({"pipelineName": job, "statuses": ["SUCCESS"]}):
        if time.monotonic() - began > _PATIENCE_S:
            raise TimeoutError(f"no run of {job} succeeded in {_PATIENCE_S:.0f} s")
        time.sleep(1)


def _runs_on(state: dict[str, str]) -> bool:
    return state["status"] == "RUNNING"


def _runs(filters: dict[str, Any]) -> int:
    return int(ask(RUNS, {"filter": filters})["runsOrError"]["count"])


def _sensors() -> list[tuple[str, dict[str, str], dict[str, str]]]:
    """Name, selector and state of each sensor."""
    return [
        (
            sensor["name"],
            {
                "repositoryName": repository["name"],
                "repositoryLocationName": repository["location"]["name"],
                "sensorName": sensor["name"],
            },
            sensor["sensorState"],
        )
        for repository in ask(SENSORS)["repositoriesOrError"]["nodes"]
        for sensor in repository["sensors"]
    ]
