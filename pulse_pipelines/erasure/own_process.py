"""The process that erases from one table of a tenant's own: it decodes what the tenant's engines wrote.

Its memory is limited. What it is to do comes by its standard input, so that no list of processes has the
value; the outcome is the last line that it prints.
"""

import sys
from dataclasses import asdict
from uuid import UUID

import orjson

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure.own_subject import Wanted
from pulse_pipelines.erasure.own_table import OwnErasure
from pulse_pipelines.lake.catalog import OwnTable
from pulse_pipelines.sql.confinement import limit_memory

MEMORY = 1024**3
"""Beyond what the process has when it begins."""


def main() -> None:
    """Count, erase, or search again."""
    limit_memory(MEMORY)
    asked = orjson.loads(sys.stdin.buffer.read())
    tenant = Tenant(UUID(asked["tenant_id"]), asked["tenant"])
    table = asked["table"]
    own = OwnTable(tuple(table["namespace"]), table["name"], (table["row"][0], table["row"][1]), table["at"])
    wanted = Wanted(tuple(map(tuple, asked["paths"])), asked["value"])
    erasure = OwnErasure(tenant, own, wanted)
    match asked["do"]:
        case "erase":
            outcome = erasure.erase(asked["erasure_id"])
        case "left":
            outcome = erasure.left(asked["uuid"], asked["sequence"])
        case _:
            outcome = erasure.count()
    print(orjson.dumps(asdict(outcome)).decode(), flush=True)


if __name__ == "__main__":
    main()
