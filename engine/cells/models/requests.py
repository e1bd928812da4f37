"""Fields of a request that the models here read, checked."""

from typing import Any

import numpy as np

from penstock.engine.cells.contract import Int32Array
from penstock.engine.cells.errors import EmptySequence, InvalidSequence
from penstock.engine.cells.graphs.graph import are_integers
from penstock.engine.cells.models.model import RequestFields


def take_tokens(request: RequestFields) -> Int32Array:
    """The field `tokens`, at least one. Whether each is in the vocabulary is checked with the graph."""
    tokens = take_integers(request, "tokens")
    if len(tokens) == 0:
        raise EmptySequence("'tokens' is empty; a sequence has at least one token.")
    return tokens


def take_integers(request: RequestFields, name: str) -> Int32Array:
    """A flat list of int32 values."""
    values: Any = request.get(name)
    is_list = isinstance(values, list | tuple) and are_integers(values)
    array = np.asarray(values if is_list or isinstance(values, np.ndarray) else [[]])
    is_flat = array.ndim == 1 and (array.dtype.kind in "iu" or len(array) == 0)
    if not is_flat or (len(array) > 0 and (array.min() < -(2**31) or array.max() >= 2**31)):
        raise InvalidSequence(f"the request needs {name!r}, a flat list of int32 values.")
    return array.astype(np.int32)


def take_count(request: RequestFields, name: str) -> int:
    """A number that is at least 1. The limit of steps bounds it, with the graph."""
    value: Any = request.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise InvalidSequence(f"the request needs {name!r}, an integer of at least 1. Given: {value!r}")
    return value
