"""What a client imports: the wire format, the error tree, the async Client, tokenization and bulk jobs."""

from penstock.producer.client import Client
from penstock.producer.errors import (
    BackendError,
    BadTokenId,
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
from penstock.producer.messages import Classification, Options

__all__ = [
    "BackendError",
    "BadTokenId",
    "Classification",
    "Client",
    "EmptyInput",
    "Expired",
    "InvalidRequest",
    "Options",
    "Overloaded",
    "PenstockError",
    "ShuttingDown",
    "TooLong",
    "UnknownModel",
    "UnsupportedTask",
]
