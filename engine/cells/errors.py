"""Errors of cellular batching.

EngineError
├── InvalidCell             a cell's declaration contradicts itself, or its step does not do what it declares
├── CellFailed              a row of a batch raised or is not finite; the other rows have results
└── InvalidBatch
    └── InvalidGraph        a request that cannot run as it is
        ├── InvalidSequence     its fields are missing or have the wrong form
        ├── CyclicGraph         a node waits for itself
        ├── DisconnectedGraph   parts that do not read each other
        ├── UnknownCell         a node of a cell that the model does not have
        ├── WrongArity          a node that reads more or fewer nodes than its cell
        ├── EmptySequence       no node, or a node of no step
        └── GraphTooLarge       over a limit of nodes, depth, steps or slots
"""

from penstock.engine.errors import EngineError, InvalidBatch


class InvalidCell(EngineError, ValueError):
    """A cell's declaration contradicts itself, or its step does not return what it declares."""


class CellFailed(EngineError):
    """A row raised or is not finite; the error's cause is what the cell raised. The other rows have results."""


class InvalidGraph(InvalidBatch):
    """A request that cannot run as it is; nothing was computed."""


class InvalidSequence(InvalidGraph):
    """The request's fields are missing or have the wrong form."""


class CyclicGraph(InvalidGraph):
    """A node waits for itself."""


class DisconnectedGraph(InvalidGraph):
    """Parts of the graph do not read each other."""


class UnknownCell(InvalidGraph):
    """A node of a cell that the model does not have."""


class WrongArity(InvalidGraph):
    """A node reads more or fewer nodes than its cell, or a state that the node before does not write."""


class EmptySequence(InvalidGraph):
    """A graph without nodes, or a node without steps."""


class GraphTooLarge(InvalidGraph):
    """The request is over a limit of nodes, depth, steps or slots."""
