"""A model made of cells: its cell types, and how a request unfolds into them, by fields that are checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from penstock.engine.cells.contract import Cell, CellSpec, Int32Array
from penstock.engine.cells.errors import EmptySequence, InvalidCell, InvalidGraph, InvalidSequence
from penstock.engine.cells.graph import ARGUMENTS, GraphBuilder, GraphLimits, Unfolded, int32_values
from penstock.engine.cells.graph_checks import check_graph

RequestFields = Mapping[str, Any]  # a request's fields, as decoded from the wire
Unfold = Callable[[RequestFields, GraphBuilder], None]

# Of which int32 holds each value.
_INTEGERS = {torch.bool, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32}


@dataclass(frozen=True, slots=True)
class CellModel:
    """Cell types, and the function that adds a request's nodes to a graph."""

    cells: tuple[Cell, ...]  # one of each type, in the order of `Unfolded.cells`
    types: Mapping[str, int]  # cell name -> index of its type; equal cells of several names are one type
    unfold_into: Unfold

    @property
    def specs(self) -> tuple[CellSpec, ...]:
        return tuple(cell.spec for cell in self.cells)

    @classmethod
    def of(cls, cells: Sequence[Cell], unfold: Unfold) -> "CellModel":
        """A model of these cells. Cells with equal weights and shapes share a type, whatever their names.

        Raises InvalidCell for cells whose declarations contradict themselves or each other.
        """
        distinct: list[Cell] = []
        types: dict[str, int] = {}
        for cell in cells:
            require_consistent(cell.spec)
            if cell.spec.name in types:
                raise InvalidCell(f"two cells are named {cell.spec.name!r}; each needs a name of its own.")
            shared = next((index for index, other in enumerate(distinct) if _are_equal(cell, other)), None)
            types[cell.spec.name] = len(distinct) if shared is None else shared
            if shared is None:
                distinct.append(cell)
        _require_common_states(distinct)
        return cls(tuple(distinct), types, unfold)

    def unfold(self, request: RequestFields, limits: GraphLimits = GraphLimits()) -> Unfolded:  # noqa: B008 -- immutable
        """The request's graph, checked. Raises InvalidGraph, whatever the model's own function raises."""
        specs = self.specs
        builder = GraphBuilder(specs, self.types, limits)
        try:
            self.unfold_into(request, builder)
            graph = builder.build()
        except InvalidGraph:
            raise
        except Exception as error:  # the model's own code, on a request that was not checked before
            raise InvalidSequence(f"the model cannot unfold this request. Raised: {error!r}") from error
        check_graph(graph, specs, limits)
        return graph


def require_consistent(spec: CellSpec) -> None:
    """Raise InvalidCell for a declaration that contradicts itself."""
    emits = {emission.name: emission for emission in spec.emits}
    states = {state.name for state in spec.states}
    problem = None
    if not spec.states:
        problem = "it has no state; a cell without one needs no slot"
    elif len(states) < len(spec.states) or len(emits) < len(spec.emits) or len(set(spec.inputs)) < len(spec.inputs):
        problem = "two of its states, inputs or emissions have the same name"
    elif taken := ARGUMENTS & set(spec.inputs):
        problem = f"an input needs another name than {', '.join(sorted(taken))}, an argument of `graph.add`"
    elif min(spec.arity, spec.max_rows, spec.max_steps, *(s.width for s in (*spec.states, *spec.emits))) < 1:
        problem = "arity, max_rows, max_steps and widths must be at least 1"
    elif spec.arity > 1 and spec.max_steps > 1:
        problem = f"a cell that reads {spec.arity} nodes has one step; set max_steps=1"
    elif not {*spec.feedback, *spec.input_sizes} <= set(spec.inputs):
        problem = "feedback and input_sizes name inputs that it does not have"
    elif not {*spec.feedback.values(), *spec.stop} <= emits.keys():
        problem = "feedback and stop name emissions that it does not have"
    elif any(not _is_token(emits[name].dtype, emits[name].width) for name in (*spec.feedback.values(), *spec.stop)):
        problem = "an emission that is fed back or stops the cell must be an int32 of width 1"
    elif any(not emission.dtype.is_floating_point and emission.dtype not in _INTEGERS for emission in spec.emits):
        problem = "an emission of integers leaves as int32; declare it so, and convert it in the step"
    if problem is not None:
        raise InvalidCell(f"cell {spec.name!r}: {problem}.")


def _is_token(dtype: torch.dtype, width: int) -> bool:
    return dtype == torch.int32 and width == 1


def _require_common_states(cells: Sequence[Cell]) -> None:
    """States of equal name share a pool."""
    known = {state.name: state for cell in cells for state in cell.spec.states}
    for cell in cells:
        for state in cell.spec.states:
            if known[state.name] != state:
                raise InvalidCell(
                    f"cell {cell.spec.name!r}: state {state.name!r} has another width or dtype than in another cell. "
                    "States of one name share a pool; give it another name."
                )


def _are_equal(one: Cell, other: Cell) -> bool:
    """Whether two cells compute the same: equal declarations but for the name, and equal weights."""
    if replace(one.spec, name="") != replace(other.spec, name=""):
        return False
    if one.step is other.step:
        return True
    if not (isinstance(one.step, torch.nn.Module) and isinstance(other.step, torch.nn.Module)):
        return False
    return _are_equal_modules(one.step, other.step)


def _are_equal_modules(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    ours, theirs = dict(one.named_modules()), dict(other.named_modules())
    return ours.keys() == theirs.keys() and all(
        type(module) is type(theirs[name]) and _are_same(_attributes(module), _attributes(theirs[name]))
        for name, module in ours.items()
    )


def _attributes(module: torch.nn.Module) -> dict[str, object]:
    """All that a module's result may depend on, with its weights and buffers, but for the modules inside it."""
    return {name: value for name, value in vars(module).items() if name != "_modules"}


def _are_same(one: object, other: object) -> bool:
    """Whether two values are known to be equal. What cannot be compared is not."""
    if one is other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_are_same(value, other[name]) for name, value in one.items())
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # of arrays, whose comparison has no truth, and of classes that are not the library's
        return False


def take_tokens(request: RequestFields) -> Int32Array:
    """The field `tokens`, at least one. Whether each is in the vocabulary is checked with the graph."""
    tokens = take_integers(request, "tokens")
    if len(tokens) == 0:
        raise EmptySequence("'tokens' is empty; a sequence has at least one token.")
    return tokens


def take_integers(request: RequestFields, name: str) -> Int32Array:
    """A flat list of int32 values."""
    return int32_values(name, request.get(name))


def take_count(request: RequestFields, name: str) -> int:
    """A number that is at least 1. The limit of steps bounds it, with the graph."""
    value: Any = request.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise InvalidSequence(f"the request needs {name!r}, an integer of at least 1. Given: {value!r}")
    return value
