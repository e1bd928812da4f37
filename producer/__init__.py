"""The client's side: the async Client, wire format, errors, tokenization and bulk jobs."""

from typing import TYPE_CHECKING, Any

from penstock.producer.errors import (
    BackendError,
    BadTokenId,
    Cancelled,
    EmptyInput,
    Expired,
    InvalidRequest,
    Overloaded,
    PenstockError,
    ShuttingDown,
    TooLong,
    UnknownModel,
    UnsupportedTask,
)

if TYPE_CHECKING:
    from penstock.producer.client import Client
    from penstock.producer.wire.messages import Classification, Generation, Options, Ranked, TokenClass

# Looked up on first use: the command line reads settings and errors without loading Kafka or numpy.
_LAZY = {"Client": "client"} | dict.fromkeys(
    ("Classification", "Generation", "Options", "Ranked", "TokenClass"), "wire.messages"
)

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
    "Options",
    "Overloaded",
    "PenstockError",
    "Ranked",
    "ShuttingDown",
    "TokenClass",
    "TooLong",
    "UnknownModel",
    "UnsupportedTask",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
