"""Access tokens for SASL OAUTHBEARER."""

import asyncio
import base64
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote_plus, urlencode, urlsplit
from urllib.request import Request, url2pathname, urlopen

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import AuthenticationFailedError

_SETTING = "sasl_oauthbearer_token_endpoint_url"
_ANSWER_S = 10.0
_USED_SHARE = 0.8  # of a token's lifetime, after which a new one is requested


class TokenSource(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no type information
    """Tokens from a file (`file:` URL), read for each connection, or by client credentials (RFC 6749, section 4.4)."""

    def __init__(
        self, url: str, *, client_id: str, client_secret: str, scope: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url = url
        self._client_id = client_id
        self._client_secret = client_secret
        self._scope = scope
        self._clock = clock  # in seconds
        self._token = ""
        self._renew_at = -math.inf
        self._renewing = asyncio.Lock()

    async def token(self) -> str:
        """Called by aiokafka for each connection.

        Raises AuthenticationFailedError if the endpoint or file gives no token, and OSError if the endpoint is away.
        """
        if self._url.startswith("file:"):
            return _read(Path(url2pathname(urlsplit(self._url).path)))
        async with self._renewing:
            if self._clock() >= self._renew_at:
                self._token, lifetime_s = await asyncio.to_thread(self._request)
                self._renew_at = self._clock() + _USED_SHARE * lifetime_s
            return self._token

    def _request(self) -> tuple[str, float]:
        """Ask the endpoint for a token. Returns it and its lifetime in seconds."""
        form = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        pair = f"{quote_plus(self._client_id)}:{quote_plus(self._client_secret)}"
        headers = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}", "Accept": "application/json"}
        request = Request(self._url, urlencode(form).encode(), headers)
        try:
            with urlopen(request, timeout=_ANSWER_S) as response:
                answer = json.load(response)
            return str(answer["access_token"]), float(answer.get("expires_in", 0))
        except HTTPError as error:
            if error.code >= 500:
                raise
            raise AuthenticationFailedError(f"{_SETTING}: {self._url} answers {error.code} {error.reason}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise AuthenticationFailedError(f"{_SETTING}: {self._url} gives no access_token") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AuthenticationFailedError(f"{_SETTING}: no token could be read from {path} ({error})") from error
