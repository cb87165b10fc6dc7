"""The process that erases from one table of a tenant's own: it decodes what the tenant's engines wrote.

Its memory is limited. What it is to do comes by its standard input, so that no list of processes has the
value; the outcome is the last line that it prints.
"""

import sys
from dataclasses import asdict
from uuid import UUID

import orjson

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure.own.subject import SearchedValue
from pulse_pipelines.erasure.own.table import OwnErasure
from pulse_pipelines.lake.catalog import OwnTable
from pulse_pipelines.sql.confinement import limit_memory

MEMORY = 1024**3
"""Beyond what the process has when it begins."""


def main() -> None:
    """Count, erase, or search again."""
    limit_memory(MEMORY)
    request = orjson.loads(sys.stdin.buffer.read())
    tenant = Tenant(UUID(request["tenant_id"]), request["tenant"])
    table = request["table"]
    entry = OwnTable(
        tuple(table["namespace"]), table["name"], (table["row"][0], table["row"][1]), table["at"]
    )
    searched = SearchedValue(tuple(map(tuple, request["paths"])), request["value"])
    erasure = OwnErasure(tenant, entry, searched)
    match request["do"]:
        case "erase":
            outcome = erasure.erase(request["erasure_id"])
        case "left":
            outcome = erasure.search_again(request["uuid"], request["sequence"])
        case _:
            outcome = erasure.count()
    print(orjson.dumps(asdict(outcome)).decode(), flush=True)


if __name__ == "__main__":
    main()
