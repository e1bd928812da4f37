"""The client of the serving benchmark in the load generator's processes: an open loop is not held back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from penstock.ops.bench.load.client_process import UP_TIMEOUT_S, Call, ClientSpec
from penstock.ops.bench.load.loads import Load
from penstock.producer import Client

_MAX_IN_FLIGHT = 65_536  # records


@asynccontextmanager
async def connect(spec: ClientSpec, load: Load) -> AsyncIterator[Call]:
    """See `load.client_process.connect`. Calls of one turn of the event loop share records, as by default."""
    connection: Any = {"bootstrap_servers": spec.bootstrap_servers, "model": spec.served_name}
    async with Client(**connection, timeout_s=load.timeout_s, max_in_flight=_MAX_IN_FLIGHT) as client:

        async def call(sequences: list[Any]) -> list[str]:
            await client.embed(ids=sequences)
            return []

        await client.embed(ids=[[1, 2, 3]], timeout_s=UP_TIMEOUT_S)
        yield call
