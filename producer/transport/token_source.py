"""Access tokens for SASL OAUTHBEARER, one for each new connection."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Self

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import AuthenticationFailedError

from penstock.producer.settings import KafkaSettings
from penstock.producer.transport.access_token import MAX_BYTES, AccessToken, NoToken, read_token
from penstock.producer.transport.aws_token import sign_token
from penstock.producer.transport.token_command import run_token_command
from penstock.producer.transport.token_endpoint import TokenEndpoint


class TokenSource(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no type information
    """Gives the last token while it may be used again, and then requests another."""

    def __init__(
        self, request: Callable[[], Awaitable[AccessToken]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._request = request
        self._clock = clock  # in seconds
        self._token = AccessToken("")
        self._request_at = -math.inf
        self._requesting = asyncio.Lock()  # connections that are made together wait for one token

    @classmethod
    def of(cls, settings: KafkaSettings) -> Self:
        """The source that the settings choose: a file, a command, a token endpoint, or AWS."""
        if settings.sasl_mechanism == "AWS_MSK_IAM":
            return cls(partial(sign_token, settings.aws_region or ""))
        if settings.sasl_oauthbearer_token_file is not None:
            return cls(partial(_read_file, settings.sasl_oauthbearer_token_file))
        if settings.sasl_oauthbearer_token_command is not None:
            return cls(partial(run_token_command, settings.sasl_oauthbearer_token_command))
        url, secret = settings.sasl_oauthbearer_token_endpoint_url, settings.sasl_oauthbearer_client_secret
        endpoint = TokenEndpoint(
            "" if url is None else url.get_secret_value(),
            client_id=settings.sasl_oauthbearer_client_id or "",
            client_secret="" if secret is None else secret.get_secret_value(),
            scope=settings.sasl_oauthbearer_scope or "",
        )
        return cls(endpoint.request)

    async def token(self) -> str:
        """Called by aiokafka for each connection.

        Raises AuthenticationFailedError if there is no token, and OSError if it may be had later.
        """
        async with self._requesting:
            if self._clock() >= self._request_at:
                self._token = await self._request()
                self._request_at = self._clock() + self._token.reuse_s
            return self._token.text


async def _read_file(path: Path) -> AccessToken:
    """The token in a file. It is read again for each connection, so that another program may renew it."""
    try:
        return read_token(await asyncio.to_thread(_read, path))
    except (OSError, NoToken) as error:
        found = error.strerror if isinstance(error, OSError) else f"it holds {error}"
        raise AuthenticationFailedError(
            f"sasl_oauthbearer_token_file: no token could be read from {path} ({found})"
        ) from error


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)
