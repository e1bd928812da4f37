"""The client's side: the clients, wire format, errors, tokenization and bulk jobs."""

from typing import TYPE_CHECKING, Any

from penstock.producer.errors import (
    BackendError,
    BadTokenId,
    Cancelled,
    EmptyInput,
    Expired,
    InvalidRequest,
    KafkaUnreachable,
    MixedRevisions,
    Overloaded,
    PenstockError,
    ShuttingDown,
    TooLong,
    UnknownModel,
    UnsupportedTask,
    WrongArgument,
    WrongLoop,
)

if TYPE_CHECKING:
    from penstock.producer.client import Client
    from penstock.producer.sync_client import SyncClient
    from penstock.producer.wire.messages import Classification, Generation, Options, Ranked, TokenClass
    from penstock.producer.wire.vector_tables import SparseVector, TextVectors

# Looked up on first use: the command line reads settings and errors without loading Kafka or numpy.
_LAZY = {
    **{"Client": "client", "SyncClient": "sync_client"},
    **dict.fromkeys(("Classification", "Generation", "Options", "Ranked", "TokenClass"), "wire.messages"),
    **dict.fromkeys(("SparseVector", "TextVectors"), "wire.vector_tables"),
}

__all__ = [
    "BackendError",
    "BadTokenId",
    "Cancelled",
    "Classification",
    "Client",
    "EmptyInput",
    "Expired",
    "Generation",
    "InvalidRequest",
    "KafkaUnreachable",
    "MixedRevisions",
    "Options",
    "Overloaded",
    "PenstockError",
    "Ranked",
    "ShuttingDown",
    "SparseVector",
    "SyncClient",
    "TextVectors",
    "TokenClass",
    "TooLong",
    "UnknownModel",
    "UnsupportedTask",
    "WrongArgument",
    "WrongLoop",
]


if not TYPE_CHECKING:  # type checkers would take any name

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
