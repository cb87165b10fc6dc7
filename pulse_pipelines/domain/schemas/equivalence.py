"""Equivalence of subschemas: equal JSON except for annotations, also where their references lead."""

from collections.abc import Mapping
from typing import Any

import orjson

from pulse_pipelines.domain.schemas.subschemas import LISTS, MAPS, SINGLE, resolve, subschemas

TEXTS = ("title", "description", "default", "examples", "example", "$comment", "format")
FLAGS = ("deprecated", "readOnly", "writeOnly")
ADDRESSES = ("$schema", "$id", "id", "$anchor", "$defs", "definitions")
ANNOTATIONS = frozenset((*TEXTS, *FLAGS, *ADDRESSES))
"""Keywords that refuse no event. `format` is one: its effect on a column is compared with the columns.
Definitions and the root's address matter only through references to them."""
EXTENSION = "x-"
"""Prefix of custom keywords."""


class Equivalence:
    """Compares subschemas of two documents."""

    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self._old, self._new = old, new
        self._differ: set[str] = set()
        self._follow_references()

    def _follow_references(self) -> None:
        """Find the references whose targets differ.

        All are assumed equal until one differs; then references whose targets use it are compared again:
        definitions may refer to each other in cycles.
        """
        users: dict[str, set[str]] = {}
        pending = list(_references(self._old) | _references(self._new))
        for user in pending:
            target = self._target(user, self._old)
            for used in _references(target) if isinstance(target, dict) else ():
                users.setdefault(used, set()).add(user)
        while pending:
            reference = pending.pop()
            targets = self._target(reference, self._old), self._target(reference, self._new)
            if reference not in self._differ and not self.schemas(*targets):
                self._differ.add(reference)
                pending.extend(users.get(reference, ()))

    def schemas(self, old: Any, new: Any) -> bool:
        """Whether two subschemas accept the same for the same reasons."""
        if not isinstance(old, dict) or not isinstance(new, dict):
            return old is new and isinstance(old, bool)
        return all(self.values(keyword, old, new) for keyword in self.keywords(old) | self.keywords(new))

    def values(self, keyword: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
        """Whether a keyword has the same meaning in both."""
        if keyword not in old or keyword not in new:
            return False
        before, after = old[keyword], new[keyword]
        if keyword == "$ref":
            return isinstance(before, str) and before == after and before not in self._differ
        if keyword in SINGLE and not isinstance(before, list):
            return self.schemas(before, after)
        if keyword in LISTS and isinstance(before, list) and isinstance(after, list):
            return len(before) == len(after) and all(map(self.schemas, before, after))
        if keyword in MAPS and isinstance(before, dict) and isinstance(after, dict):
            return before.keys() == after.keys() and all(
                self._member(before[name], after[name]) for name in before
            )
        return self.json(before, after)

    def _member(self, old: Any, new: Any) -> bool:
        """Compare members of a map of subschemas; `dependencies` also has lists of names."""
        return self.json(old, new) if isinstance(old, list) else self.schemas(old, new)

    @staticmethod
    def _target(reference: str, root: Mapping[str, Any]) -> Any:
        if reference == "#" or reference.startswith("#/"):
            return resolve(reference, root)
        names = (node for _, node in subschemas(root) if f"#{node.get('$anchor')}" == reference)
        return next(names, None)

    @staticmethod
    def keywords(node: Mapping[str, Any]) -> set[str]:
        """The keywords of a subschema that affect what it accepts."""
        return {key for key in node if key not in ANNOTATIONS and not key.startswith(EXTENSION)}

    def only_reference(self, node: Mapping[str, Any]) -> str | None:
        """The reference of a subschema that has no other keyword; else None."""
        reference = node.get("$ref")
        return reference if isinstance(reference, str) and self.keywords(node) == {"$ref"} else None

    @staticmethod
    def json(old: Any, new: Any) -> bool:
        """Whether two JSON values are equal; in Python, True equals 1."""
        return orjson.dumps(old, option=orjson.OPT_SORT_KEYS) == orjson.dumps(
            new, option=orjson.OPT_SORT_KEYS
        )


def _references(node: Mapping[str, Any]) -> set[str]:
    references = (subschema.get("$ref") for _, subschema in subschemas(node))
    return {reference for reference in references if isinstance(reference, str)}
