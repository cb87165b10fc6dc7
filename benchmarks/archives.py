"""What a Spark worker does before each task: it looks for changes in the archives that it imports from."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark

PROGRAM = """
import importlib, json, pkgutil, sys, time
from zipimport import zipimporter
from pulse_pipelines.runtime import spark_daemon

def look(rounds=20):
    begun = time.process_time()
    for _ in range(rounds):
        importlib.invalidate_caches()
    return (time.process_time() - begun) / rounds

packages = [place for place, found in sys.path_importer_cache.items() if isinstance(found, zipimporter)]
usual = look()
spark_daemon.read_archives_once()
for place in packages:
    pkgutil.get_importer(place)
print(json.dumps([len(packages), usual, look()]))
"""


def measure() -> tuple[int, float, float]:
    """Packages in archives, and processor time of a look in seconds: as Python does it, and as workers do."""
    archives = (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, archives))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    packages, usual, ours = json.loads(done.stdout)
    return packages, usual, ours
