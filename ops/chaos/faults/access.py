"""The worker's own user at the brokers, and its privileges, which a fault can take away for a while."""

from collections.abc import Sequence
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without saying so
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

USER, PASSWORD = "worker", "not-a-secret"
LISTENERS = {"CLEAR": "SASL_PLAINTEXT"}
BROKER_CONFIG = {
    "listener.name.clear.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.clear.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_{USER}="{PASSWORD}";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # all connections of the other listener
}
OPTIONS = {
    "security-protocol": "SASL_PLAINTEXT",
    "sasl-mechanism": "PLAIN",
    "sasl-username": USER,
    "sasl-password": PASSWORD,
}
_ANSWER_S = 30

Privilege = tuple[str, str, str]  # kind of resource, operation, name


def privileges(group: str, requests: Sequence[str], letters: Sequence[str], replies: Sequence[str]) -> list[Privilege]:
    """The least that a worker needs, where its topics exist."""
    read = [("TOPIC", "READ", topic) for topic in requests]
    write = [("TOPIC", "WRITE", topic) for topic in (*letters, *replies)]
    create = [("TOPIC", "CREATE", topic) for topic in (*requests, *letters)]
    transactions = ("TRANSACTIONAL_ID", "WRITE", f"{group}:")  # all ids that begin so
    return [("GROUP", "READ", group), transactions, *read, *write, *create]


def allow(servers: str, given: Sequence[Privilege]) -> None:
    """Grant privileges. Blocks."""
    bindings = [AclBinding(*_fields(privilege)) for privilege in given]
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.create_acls(bindings).values():
        done.result(_ANSWER_S)


def revoke(servers: str, privilege: Privilege) -> None:
    """Take a privilege away. Blocks."""
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.delete_acls([_binding(privilege)]).values():
        done.result(_ANSWER_S)


def has(servers: str, privilege: Privilege) -> bool:
    """Whether the worker has a privilege. Blocks."""
    admin = AdminClient({"bootstrap.servers": servers})
    return bool(admin.describe_acls(_binding(privilege)).result(_ANSWER_S))


def _binding(privilege: Privilege) -> AclBindingFilter:
    return AclBindingFilter(*_fields(privilege))


def _fields(privilege: Privilege) -> tuple[Any, ...]:
    """A privilege as librdkafka's bindings take it, and their filters."""
    kind, operation, name = privilege
    allowed = AclOperation[operation], AclPermissionType.ALLOW
    return ResourceType[kind], name, _pattern(kind), f"User:{USER}", "*", *allowed


def _pattern(kind: str) -> ResourcePatternType:
    return ResourcePatternType.PREFIXED if kind == "TRANSACTIONAL_ID" else ResourcePatternType.LITERAL
