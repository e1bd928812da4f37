"""The token endpoint of an identity provider, asked by client credentials (RFC 6749, section 4.4)."""

import asyncio
import base64
import ssl
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import quote_plus, urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

from aiokafka.errors import AuthenticationFailedError

from penstock.producer.secret_url import without_secrets
from penstock.producer.transport.access_token import MAX_BYTES, AccessToken, NoToken, read_answer

_SETTING = "sasl_oauthbearer_token_endpoint_url"
_ANSWER_S = 10.0
_AUTHORITIES = "It is verified by the system's authorities, or those in SSL_CERT_FILE, not by ssl_ca_location"


class _NoRedirects(HTTPRedirectHandler):
    """A redirect would take the client's secret to another address. The answer of the endpoint itself is an error."""

    def redirect_request(self, *_: object) -> None: ...


_opener = build_opener(_NoRedirects)


class TokenEndpoint:
    """Its address, and the credentials of a client."""

    def __init__(self, url: str, *, client_id: str, client_secret: str, scope: str) -> None:
        self._url = url
        self._shown = f"{_SETTING}: {without_secrets(url)}"
        self._client_id = client_id
        self._client_secret = client_secret
        self._scope = scope

    async def request(self) -> AccessToken:
        """Ask for a token.

        Raises AuthenticationFailedError if the endpoint refuses one or its certificate cannot be verified, and OSError
        if it is away.
        """
        return await asyncio.to_thread(self._request)

    def _request(self) -> AccessToken:
        form = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        pair = f"{quote_plus(self._client_id)}:{quote_plus(self._client_secret)}"
        headers = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}", "Accept": "application/json"}
        request = Request(self._url, urlencode(form).encode(), headers)
        try:
            with _opener.open(request, timeout=_ANSWER_S) as response:
                return read_answer(response.read(MAX_BYTES + 1))
        except HTTPError as error:
            if error.code >= 500:
                raise
            raise AuthenticationFailedError(f"{self._shown} answers {error.code} {error.reason}") from error
        except URLError as error:
            if not isinstance(error.reason, ssl.SSLCertVerificationError):
                raise
            found = f"has a certificate that cannot be verified: {error.reason.verify_message}"
            raise AuthenticationFailedError(f"{self._shown} {found}. {_AUTHORITIES}") from error
        except NoToken as error:
            raise AuthenticationFailedError(f"{self._shown} gives {error}") from error
        except (ValueError, HTTPException) as error:
            found = f"gives no answer ({type(error).__name__})"
            raise AuthenticationFailedError(f"{self._shown} {found}") from error
