"""The OpenAPI document: what client generators need beyond what FastAPI derives from routes and models."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from pulse_api.http.problems import Problem

NDJSON = "application/x-ndjson"
OPEN_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}
"""An object of any members. Without `additionalProperties` generators make a type without members of it."""
EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["event_id", "dataset", "timestamp", "data"],
    "properties": {
        "event_id": {
            "type": "string",
            "minLength": 1,
            "maxLength": 512,
            "description": "Unique in the dataset: sent again, it is a re-delivery and lands no second row.",
        },
        "dataset": {"type": "string", "description": "Slug of one of the tenant's datasets."},
        "timestamp": {"type": "string", "format": "date-time", "description": "When it happened."},
        "data": OPEN_OBJECT | {"description": "Follows the dataset's schema."},
        "schema_version": {
            "type": ["integer", "null"],
            "description": "Version of the dataset's schema that it follows; the current one if not given.",
        },
        "context": {"description": "Kept as JSON text."},
        "trace_id": {"type": ["string", "null"]},
    },
    "example": {
        "event_id": "o-1",
        "dataset": "orders",
        "timestamp": "2026-11-19T10:00:00Z",
        "data": {"country": "DE", "amount": 12.5},
    },
}
CLOUD_EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["specversion", "id", "source", "type", "data"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "minLength": 1, "format": "uri-reference"},
        "type": {"type": "string", "minLength": 1, "description": "Its last part is the dataset ..."},
        "dataset": {"type": "string", "description": "... unless this extension names it."},
        "time": {"type": "string", "format": "date-time"},
        "data": OPEN_OBJECT,
    },
    "example": {
        "specversion": "1.0",
        "id": "o-1",
        "source": "/shop",
        "type": "orders",
        "time": "2026-11-19T10:00:00Z",
        "data": {"country": "DE", "amount": 12.5},
    },
}
ENTITY: dict[str, Any] = OPEN_OBJECT | {
    "required": ["_id"],
    "properties": {
        "_id": {"type": "string", "minLength": 1, "maxLength": 512},
        "_deleted": {"type": ["boolean", "null"], "description": "The entity is gone; nothing else is read."},
    },
    "description": "The other properties follow the dataset's schema; those that begin with _ are left out.",
    "example": {"_id": "DE", "name": "Germany", "capital": "Berlin"},
}
_COMPONENTS = {"Event": EVENT, "CloudEvent": CLOUD_EVENT, "Entity": ENTITY}


def component(name: str) -> dict[str, Any]:
    """Schema that refers to a component of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def one_or_more(name: str) -> dict[str, Any]:
    """Schema of a body with one record or an array of them."""
    return {"anyOf": [component(name), {"type": "array", "items": component(name), "minItems": 1}]}


def operation_id(route: APIRoute) -> str:
    """Name an operation as its route's function, which generated clients then call theirs."""
    return route.name


def document(app: FastAPI) -> dict[str, Any]:
    """The app's document, made once."""
    if app.openapi_schema is None:
        description = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            servers=[{"url": "/", "description": "The host that this document came from."}],
        )
        schemas = description.setdefault("components", {}).setdefault("schemas", {})
        schemas |= _COMPONENTS
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        app.openapi_schema = description
    return app.openapi_schema
