"""The load of the chaos suite: calls of clients, and records of plain producers beside them."""

import asyncio
from dataclasses import dataclass, field

from penstock.ops.chaos.load.calls import Calls
from penstock.ops.chaos.load.raw_load import RawLoad


@dataclass(frozen=True, slots=True)
class Traffic:
    """Sends requests until `is_over` is set."""

    calls: Calls
    raw: RawLoad
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Return when every call has ended and every record is acknowledged or failed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.calls.run(self.is_over))
            group.create_task(self.raw.run(self.is_over))
