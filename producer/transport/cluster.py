"""Addresses of a Kafka cluster, and credentials for it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import structlog
from aiokafka.errors import (
    AuthenticationFailedError,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from penstock.producer.aiokafka_internals.connection_probe import connection_faults
from penstock.producer.errors import KafkaUnreachable
from penstock.producer.settings import TOKEN_MECHANISMS, KafkaSettings
from penstock.producer.tls import ReloadingContext
from penstock.producer.transport.token_source import TokenSource

_HOST_MISMATCH = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH

log = structlog.get_logger("penstock.kafka")


class KafkaRefused(KafkaError):  # type: ignore[misc]  # aiokafka has no type information
    """Kafka denies access for a reason that a retry does not mend. The message says which setting or ACL to change."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """Made once, and given to everything that connects. Without `security`: plain text, without authentication."""

    bootstrap_servers: str
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)  # aiokafka's arguments; with secrets
    connect_timeout_s: float | None = None  # None: waits for a broker have no end

    @classmethod
    def of(cls, settings: KafkaSettings) -> Self:
        """The cluster that the settings name. Logs a warning if the protocol does not encrypt the credentials."""
        protocol, mechanism = settings.security_protocol, settings.sasl_mechanism
        security: dict[str, Any] = {"security_protocol": protocol}
        if settings.uses_tls:
            security["ssl_context"] = ReloadingContext(settings.tls_context, settings.tls_files)
        if settings.uses_sasl:
            security |= _sasl(settings)
            if not settings.uses_tls:
                log.warning("sasl_unencrypted", security_protocol=protocol, sasl_mechanism=mechanism)
        return cls(settings.bootstrap_servers, security, settings.connect_timeout_s)

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of aiokafka's producers, consumers and admin clients."""
        return {"bootstrap_servers": self.bootstrap_servers, **self.security}

    @asynccontextmanager
    async def patience(self) -> AsyncIterator[None]:
        """Bound a wait for Kafka. Raises KafkaUnreachable when `connect_timeout_s` is over."""
        try:
            async with asyncio.timeout(self.connect_timeout_s) as limit:
                yield
        except TimeoutError:
            if limit.expired():
                raise self.unreachable() from None
            raise

    def unreachable(self) -> KafkaUnreachable:
        """The error after `connect_timeout_s` without an answer."""
        waited = f" within {self.connect_timeout_s:g} s" if self.connect_timeout_s is not None else ""
        return KafkaUnreachable(
            f"Kafka at {self.bootstrap_servers} does not answer{waited}. Set bootstrap_servers to your Kafka "
            "(PENSTOCK_BOOTSTRAP_SERVERS), or start one on this machine: penstock broker"
        )

    async def refusal(self) -> KafkaRefused | None:
        """Ask the servers why they cannot be used. None unless one refuses clearly.

        Called after a client could not start: aiokafka's clients report any failure as a lost connection.
        """
        if self.security.get("security_protocol", "PLAINTEXT") == "PLAINTEXT":
            return None
        async for server, error in connection_faults(self.bootstrap_servers, self.security):
            reason = self._reason(error)
            if reason:
                return KafkaRefused(f"Kafka at {server} {reason}")
        return None

    def _reason(self, error: Exception) -> str:
        """A clear refusal as the rest of a sentence; empty for an error that a retry may mend."""
        mechanism = self.security.get("sasl_mechanism")
        cause = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
        match cause:
            case ssl.SSLCertVerificationError():
                found = f"has a certificate that cannot be verified: {cause.verify_message}"
                if cause.verify_code in _HOST_MISMATCH:
                    return f"{found} Connect by a name in the certificate (bootstrap_servers, advertised.listeners)."
                return f"{found}. Set ssl_ca_location to the certificates of its authority."
            case ssl.SSLError(reason=str(alert)) if "ALERT" in alert and ("CERTIFICATE" in alert or "CA" in alert):
                found = f"refuses the client's certificate: {alert.lower().replace('_', ' ')}"
                return f"{found}. Check ssl_certificate_location and ssl_key_location."
            case SaslAuthenticationFailed():
                told = cause.args[0] if cause.args and cause.args[0] else "authentication failed"
                return f"refuses the credentials: {told}. Check the sasl_… settings."
            case UnsupportedSaslMechanismError():
                return f"does not enable {mechanism}. Check sasl_mechanism."
            case IllegalSaslStateError():
                return "has no SASL at this port. Check security_protocol and the port."
            case AuthenticationFailedError():
                return f"needs a token. {cause.args[0]}."
        return ""


def _sasl(settings: KafkaSettings) -> dict[str, Any]:
    """aiokafka's arguments. To the broker, AWS_MSK_IAM is OAUTHBEARER with a token that AWS's credentials sign."""
    if settings.sasl_mechanism in TOKEN_MECHANISMS:
        return {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": TokenSource.of(settings)}
    password = settings.sasl_password
    return {
        "sasl_mechanism": settings.sasl_mechanism,
        "sasl_plain_username": settings.sasl_username,
        "sasl_plain_password": "" if password is None else password.get_secret_value(),
    }
