"""TLS towards Kafka brokers."""

import ssl
from pathlib import Path


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
