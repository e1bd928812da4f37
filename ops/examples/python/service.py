"""A service that routes support messages: standard input in, one line with the nearest route out.

python service.py SERVERS MODEL ROUTE... < messages.txt
"""

import asyncio
import sys

from penstock import Client, Overloaded, PenstockError


async def route(client: Client, routes: dict[str, list[float]], message: str) -> str:
    """Name the route whose embedding is nearest to the message, with the cosine similarity."""
    try:
        vector = await client.embed(message, normalize=True, timeout_s=10)
    except Overloaded:
        return f"try again later: {message}"  # the client has already retried three times
    except PenstockError as error:
        return f"{error.code}: {message!r}"
    score, name = max((float(vector @ route), name) for name, route in routes.items())
    return f"{score:.3f}  {name}: {message}"


async def main(servers: str, model: str, names: list[str]) -> None:
    async with Client(bootstrap_servers=servers, model=model) as client:
        vectors = await client.embed(names, normalize=True)
        routes = dict(zip(names, vectors, strict=True))
        messages = [line.rstrip("\n") for line in sys.stdin]
        # Concurrent calls share Kafka records; each has its own answer or error.
        for line in await asyncio.gather(*(route(client, routes, message) for message in messages)):
            print(line)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
