"""The worker's own user at the brokers, and its privileges, which a fault can take away for a while."""

from collections.abc import Callable, Sequence
from typing import TypeVar

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

_B = TypeVar("_B", AclBinding, AclBindingFilter)
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
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.create_acls([_binding(AclBinding, privilege) for privilege in given]).values():
        done.result(_ANSWER_S)


def revoke(servers: str, privilege: Privilege) -> None:
    """Take a privilege away. Blocks."""
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.delete_acls([_binding(AclBindingFilter, privilege)]).values():
        done.result(_ANSWER_S)


def has(servers: str, privilege: Privilege) -> bool:
    """Whether the worker has a privilege. Blocks."""
    admin = AdminClient({"bootstrap.servers": servers})
    return bool(admin.describe_acls(_binding(AclBindingFilter, privilege)).result(_ANSWER_S))


def _binding(binding: Callable[..., _B], privilege: Privilege) -> _B:
    """A privilege as librdkafka has it, or the filter that finds it."""
    kind, operation, name = privilege
    pattern = ResourcePatternType.PREFIXED if kind == "TRANSACTIONAL_ID" else ResourcePatternType.LITERAL
    allowed = AclOperation[operation], AclPermissionType.ALLOW
    return binding(ResourceType[kind], name, pattern, f"User:{USER}", "*", *allowed)
