"""Why a connection to a broker cannot be made.

aiokafka's clients (0.14) report any failure as a lost connection. To go, it needs a client that raises the cause.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from aiokafka.conn import AIOKafkaConnection, collect_hosts
from aiokafka.errors import KafkaError

_ANSWER_MS = 5000
_CLOSE_S = 0.5


async def connection_faults(
    bootstrap_servers: str, security: Mapping[str, Any]
) -> AsyncIterator[tuple[str, OSError | KafkaError]]:
    """Servers and the errors of connecting to them, up to the first that takes a connection.

    `security`: aiokafka's arguments.
    """
    for host, port, _ in collect_hosts(bootstrap_servers):
        connection = AIOKafkaConnection(host, port, request_timeout_ms=_ANSWER_MS, **security)
        try:
            await connection.connect()
            return
        except (OSError, KafkaError) as error:
            fault = error
        finally:
            closed = connection.close()
            if closed is not None:  # it never ends if there was no connection to close
                await asyncio.wait((closed,), timeout=_CLOSE_S)
        yield f"{host}:{port}", fault
