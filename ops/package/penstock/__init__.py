"""Transformer inference as a Kafka consumer group: `from penstock import Client`, or `SyncClient`.

The folders of the package are links to the rooms of the repository.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.producer import (
        BackendError,
        BadTokenId,
        Cancelled,
        Classification,
        Client,
        EmptyInput,
        Expired,
        Generation,
        InvalidRequest,
        KafkaUnreachable,
        MixedRevisions,
        Options,
        Overloaded,
        PenstockError,
        Ranked,
        ShuttingDown,
        SparseVector,
        SyncClient,
        TextVectors,
        TokenClass,
        TooLong,
        UnknownModel,
        UnsupportedTask,
        WrongArgument,
        WrongLoop,
    )

    __version__: str

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
    "__version__",
]


if not TYPE_CHECKING:  # type checkers would take any name

    def __getattr__(name: str) -> Any:
        """Names are looked up on first use: every import of a room runs this module."""
        if name == "__version__":
            from importlib.metadata import version

            return version("penstock")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module("penstock.producer"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
