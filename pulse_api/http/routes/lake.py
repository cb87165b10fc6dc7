"""/v1/lake/connect: what an engine needs to read the tenant's tables."""

from pydantic import BaseModel, Field

from pulse_api.http.auth import LakeReader
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_api.lake.connecting import Engine, written
from pulse_resources.settings import load_settings

router = resource("lake", "/v1/lake")
PLACEHOLDER = "YOUR_KEY"


class EngineText(BaseModel):
    engine: Engine
    paste: str = Field(description=f"Configuration or code; put a key in the place of {PLACEHOLDER}.")


class Connection(BaseModel):
    catalog: str = Field(description="Address of the REST catalog.")
    placeholder: str = Field(description="Placeholder in the texts for a key with the scope lake:read.")
    engines: list[EngineText]


@router.get("/connect", summary="Get the configuration of engines", responses=documented(401, 403, 429, 503))
def get_connection(principal: LakeReader) -> Connection:
    """Text to paste into DuckDB, PyIceberg, Spark and Trino, to read the tenant's tables.

    It holds no key: issue one with the scope `lake:read` for each engine.
    """
    catalog, tenant = load_settings().lake.linked_url, principal.tenant.slug
    texts = [
        EngineText(engine=engine, paste=written(engine, tenant, PLACEHOLDER, catalog)) for engine in Engine
    ]
    return Connection(catalog=catalog, placeholder=PLACEHOLDER, engines=texts)
