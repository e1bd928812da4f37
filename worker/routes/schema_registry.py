"""The schema registry of a worker's routes, by confluent-kafka's client: patient while the registry is away."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from penstock.producer.errors import WrongArgument

_TIMEOUT_S = 10.0  # of one request
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 5.0  # between two tries
_UNKNOWN = (40401, 40402, 40403)  # the registry's own codes: no such subject, version, schema
_REFUSED = (409, 422)  # not compatible; not a schema that the registry takes

Schema = Any  # confluent_kafka's: `schema_str`, `schema_type`, `references`

log = structlog.get_logger("penstock.routes")


class SchemaRegistry:
    """Called on the event loop. Each method tries until the registry answers, and logs when that begins and ends.

    What a registry says that it neither knows nor refuses, such as a server's error or a wrong password, may pass: a
    record is not at fault for it.
    """

    def __init__(self, client: dict[str, Any]) -> None:
        """`client`: the configuration of confluent-kafka's client."""
        from confluent_kafka.schema_registry import AsyncSchemaRegistryClient

        self._client: Any = AsyncSchemaRegistryClient(client | {"max.retries": 0, "timeout": _TIMEOUT_S})
        self._url = client["url"]
        self._away_since: float | None = None

    async def schema(self, schema_id: int) -> Schema | None:
        """The schema of an id; None if the registry has none."""
        return await self._ask(self._client.get_schema, schema_id)

    async def referenced(self, schema: Schema) -> list[tuple[str, str]]:
        """The schemas that a schema refers to, directly or not, by name; each after those that it refers to itself."""
        found: list[tuple[str, str]] = []
        for one in schema.references or ():
            registered = await self._ask(self._client.get_version, one.subject, one.version)
            if registered is not None:
                found += [*await self.referenced(registered.schema), (one.name, registered.schema.schema_str)]
        return found

    async def versions(self, subject: str) -> list[tuple[int, Schema]]:
        """The ids and the schemas of a subject's versions, the oldest first."""
        numbers = await self._ask(self._client.get_versions, subject)
        found = [await self._ask(self._client.get_version, subject, number) for number in sorted(numbers or ())]
        return [(one.schema_id, one.schema) for one in found if one is not None]

    async def latest(self, subject: str) -> tuple[int, Schema] | None:
        """The id and the schema of a subject's latest version; None if it has none."""
        await self._client.clear_latest_caches()
        found = await self._ask(self._client.get_latest_version, subject)
        return None if found is None else (found.schema_id, found.schema)

    async def register(self, subject: str, schema: Schema) -> int:
        """Register a schema, unless the subject has it. Returns its id. Raises WrongArgument if it is refused."""
        schema_id = await self._ask(self._client.register_schema, subject, schema)
        if schema_id is None:
            raise WrongArgument(f"The schema registry cannot have a schema for the subject {subject}.")
        return int(schema_id)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _ask(self, call: Callable[..., Awaitable[Any]], *arguments: object) -> Any:
        """The client's answer; None where the registry does not know what it is asked of."""
        import httpx2
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        wait_s = _FIRST_WAIT_S
        while True:
            try:
                answer = await call(*arguments)
            except SchemaRegistryError as error:
                if error.error_code in _UNKNOWN:
                    self._note_answer()
                    return None
                if error.http_status_code in _REFUSED:
                    self._note_answer()
                    raise WrongArgument(error.error_message) from error
                self._note_away(f"{error.error_message} (HTTP status {error.http_status_code})")
            except (httpx2.HTTPError, OSError, ValueError) as error:  # ValueError: the answer is not JSON
                self._note_away(str(error) or type(error).__name__)
            else:
                self._note_answer()
                return answer
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _note_away(self, reason: str) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            log.warning("schema_registry_away", url=self._url, error=reason)

    def _note_answer(self) -> None:
        if self._away_since is not None:
            seconds = round(time.monotonic() - self._away_since, 3)
            self._away_since = None
            log.info("schema_registry_back", url=self._url, seconds=seconds)
