"""Refuses changes of quotas by IP address that the sidecar does not apply: with ``quotas.ip.store: file``.

Without this, Kafka's tool reports success, and no limit changes.
"""

from __future__ import annotations

from typing import Any

from proxy.core.accessors import Accessors
from proxy.core.apis import ALTER_CLIENT_QUOTAS, is_known, response_header_is_flexible
from proxy.core.encode import encode
from proxy.core.interceptor import ON_BODY, Disposition, Interceptor, Request, Verdict
from proxy.core.schema import layout
from proxy.core.struct import view

POLICY_VIOLATION = 44

IP = "ip"
"""Kafka's entity type of a quota by IP address."""

IP_MESSAGE = "This sidecar takes the quotas of IP addresses from its configuration: quotas.ips (ip.store is file)."
OTHER_MESSAGE = "Not altered: the same request alters quotas of IP addresses, which this sidecar refuses."


class IpQuotas(Interceptor):
    """Refuses AlterClientQuotas as a whole if it has an entity of type ``ip``, while ``in_file``.

    After ``in_file`` has changed, the chain has to be updated.
    """

    def __init__(self, *, in_file: bool) -> None:
        """``in_file``: the quotas of IP addresses are in the sidecar's configuration only."""
        self.in_file = in_file

    def flags(self, api_key: int, api_version: int) -> int:
        """All known versions of AlterClientQuotas."""
        return ON_BODY if self.in_file and api_key == ALTER_CLIENT_QUOTAS and is_known(api_key, api_version) else 0

    def on_body(self, request: Request, body: bytes) -> Verdict:
        """Answer a request that alters the quota of an address; forward all others. Raises MalformedBody."""
        if IP.encode() not in body:
            return Disposition.FORWARD
        entries = view(request.api_key, request.api_version, body, response=False).get("Entries")
        if not any(map(_is_of_an_address, entries)):
            return Disposition.FORWARD
        message = layout(request.api_key, request.api_version, response=True)
        tags = b"\0" if response_header_is_flexible(request.api_key, request.api_version) else b""
        return tags + encode(message, {"Entries": list(map(_error_entry, entries))})


def _is_of_an_address(entry: Accessors) -> bool:
    return any(entity.get("EntityType") == IP for entity in entry.get("Entity"))


def _error_entry(entry: Accessors) -> dict[str, Any]:
    """Return the answer to one entry of a request: Kafka answers each with its entity."""
    entity = [{name: each.get(name) for name in ("EntityType", "EntityName")} for each in entry.get("Entity")]
    message = IP_MESSAGE if _is_of_an_address(entry) else OTHER_MESSAGE
    return {"ErrorCode": POLICY_VIOLATION, "ErrorMessage": message, "Entity": entity}
