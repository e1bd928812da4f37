"""TLS towards Kafka brokers."""

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import structlog

log = structlog.get_logger("penstock.kafka")


def tls_context(
    *, ca: Path | None, certificate: Path | None, key: Path | None, key_password: str, check_hostname: bool
) -> ssl.SSLContext:
    """Read the PEM files of the `ssl_…` settings; without `ca`, the system's certificate authorities are trusted.

    Raises ValueError that names the setting whose file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:  # ssl.SSLError is one too
        raise ValueError(f"ssl_ca_location: no certificates could be read from {ca} ({error})") from error
    context.check_hostname = check_hostname
    if certificate is not None and key is not None:
        try:
            # An empty password fails. Without one, OpenSSL would ask for it on the terminal.
            context.load_cert_chain(certificate, key, key_password)
        except OSError as error:
            files = f"the certificate {certificate} and the key {key} cannot be used together ({error})"
            raise ValueError(f"ssl_certificate_location, ssl_key_location, ssl_key_password: {files}") from error
    return context


class ReloadingContext(ssl.SSLContext):
    """Gives each new connection the PEM files as they are then. Connections that exist keep what they have.

    If changed files cannot be used, such as a certificate whose key is not written yet, the earlier ones stay in use.
    """

    def __new__(cls, read: Callable[[], ssl.SSLContext], files: Sequence[Path]) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, read: Callable[[], ssl.SSLContext], files: Sequence[Path]) -> None:
        """`read` makes a context of the files, or raises ValueError."""
        self._read = read
        self._files = files
        self._versions = self._find_versions()
        self._context = read()

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Called by the event loop for each connection."""
        versions = self._find_versions()
        if versions != self._versions:
            self._versions = versions
            try:
                self._context = self._read()
                log.info("certificates_reloaded")
            except ValueError as error:
                log.warning("certificates_not_reloaded", error=str(error))
        return self._context.wrap_bio(*args, **options)

    def _find_versions(self) -> list[tuple[int, ...]]:
        """A value that differs for a changed file, also for one behind a link that was replaced."""
        versions: list[tuple[int, ...]] = []
        for file in self._files:
            try:
                found = file.stat()
                versions.append((found.st_ino, found.st_mtime_ns, found.st_size))
            except OSError:
                versions.append(())
        return versions
