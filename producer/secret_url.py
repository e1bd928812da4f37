"""URLs and addresses that may hold a secret: shown without user, password and query."""

import re

from pydantic import Secret

_USER = re.compile(r"^([a-z][a-z0-9+.-]*://)?.*@", re.IGNORECASE | re.DOTALL)
_QUERY = re.compile(r"[?#].*", re.DOTALL)


class SecretUrl(Secret[str]):
    """A URL whose text and JSON form leave out what may be a secret. `get_secret_value` returns all of it."""

    def _display(self) -> str:  # called by pydantic for str, repr and JSON
        return without_secrets(self.get_secret_value())


def without_secrets(address: str) -> str:
    """An address, which need not be valid, with *** in place of user and password, and of the query."""
    return _QUERY.sub("?***", _USER.sub(r"\1***@", address))
