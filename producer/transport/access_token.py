"""An access token for SASL OAUTHBEARER, read from what a file, a command or a token endpoint gives. Pure functions."""

import json
import math
import re
from dataclasses import dataclass, field

MAX_BYTES = 64 * 1024  # of what is read to find a token
USED_SHARE = 0.8  # of a token's lifetime, after which a new one is requested
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, section 2.1; anything else would break Kafka's message


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token, and how long it is given to new connections."""

    text: str = field(repr=False)
    reuse_s: float = 0.0


class NoToken(ValueError):
    """There is no token in these bytes. The message quotes none of them."""


def read_token(raw: bytes, reuse_s: float = 0.0) -> AccessToken:
    """The token that is all of `raw` but white space at both ends. Raises NoToken."""
    if len(raw) > MAX_BYTES:
        raise NoToken(f"more than {MAX_BYTES:,} bytes")
    token = raw.strip()
    if not token:
        raise NoToken("nothing")
    if _TOKEN.fullmatch(token) is None:
        raise NoToken("characters that no token has")
    return AccessToken(token.decode("ascii"), reuse_s)


def read_answer(raw: bytes) -> AccessToken:
    """The token in a token endpoint's answer (RFC 6749, section 5.1). Raises NoToken."""
    if len(raw) > MAX_BYTES:
        raise NoToken(f"more than {MAX_BYTES:,} bytes")
    try:
        answer = json.loads(raw)
        token, lifetime_s = answer["access_token"], float(answer.get("expires_in", 0))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise NoToken("no access_token") from error
    if not isinstance(token, str):
        raise NoToken("no access_token")
    is_lifetime = 0 < lifetime_s < math.inf
    return read_token(token.encode(errors="replace"), USED_SHARE * lifetime_s if is_lifetime else 0.0)
