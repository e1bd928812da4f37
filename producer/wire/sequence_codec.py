"""The task `sequence` on the wire: the fields of each sequence, and what its cells emit. See WIRE.md.

Decoders return a value or raise `InvalidRequest`. Sizes are checked before anything is allocated from them.
"""

import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from penstock.producer.errors import EmptyInput, InvalidRequest, PenstockError, WrongArgument

Fields = dict[str, Any]  # name -> a number, string or bool, or a list of them, or of such lists
Emitted = npt.NDArray[np.float32] | npt.NDArray[np.int32]

MAX_ITEMS = 65_536  # of all fields of a record: each number, string, bool and list
MAX_DEPTH = 4  # of lists within lists
MAX_LIST = 4096  # items of one list, as in any request
MAX_COLUMNS = 64  # emissions with a name of their own
EMITTED_DTYPES = {"float32": np.dtype("<f4"), "int32": np.dtype("<i4")}
_SCALARS = frozenset({int, float, str, bool})
_UINT32 = np.dtype("<u4")


@dataclass(frozen=True, slots=True, eq=False)
class EmissionColumn:
    """Emissions of one name, of n sequences end to end. R is the sum of `lens`."""

    values: Emitted  # [R, width]
    lens: tuple[int, ...]  # rows of each sequence; 0 where none of its cells emits the name


@dataclass(frozen=True, slots=True)
class EmissionTable:
    """The emissions of n sequences."""

    num_sequences: int
    columns: Mapping[str, EmissionColumn]

    def rows(self) -> list[dict[str, Emitted]]:
        """Of each sequence the emissions by name, each [rows, width]: those that it has."""
        found: list[dict[str, Emitted]] = [{} for _ in range(self.num_sequences)]
        for name, column in self.columns.items():
            start = 0
            for row, length in zip(found, column.lens, strict=True):
                if length:
                    row[name] = column.values[start : start + length]
                start += length
        return found


def decode_fields(sequences: object) -> tuple[Fields, ...]:
    """The fields of each sequence of a request. Raises InvalidRequest, which names the sequence at fault."""
    if not isinstance(sequences, list):
        raise InvalidRequest("`sequence` needs `sequences`, a list of maps.")
    if not sequences:
        raise EmptyInput("`sequences` is an empty list: the request holds no sequence.")
    room = MAX_ITEMS
    for index, fields in enumerate(sequences):
        room -= _count(fields, index, room)
    return tuple(sequences)


def read_fields(given: object, index: int) -> Fields | PenstockError:
    """A caller's fields in the form of the wire, or the error that prevents sending them.

    Tuples and arrays of numpy become lists, and its scalars Python's.
    """
    try:
        if not isinstance(given, Mapping):
            raise WrongArgument(f"Sequence {index} must be a map of fields. Given: {type(given).__name__}")
        fields = {name: _plain(value) for name, value in given.items()}
        _count(fields, index, MAX_ITEMS)
        msgpack.packb(fields)
    except PenstockError as error:
        return error
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # of msgpack: what the wire cannot encode
        return InvalidRequest(f"Sequence {index} cannot be sent: {error}")
    return fields


def packed_fields(fields: Fields) -> bytes:
    """The bytes of a sequence's fields: equal ones mean equal sequences."""
    return bytes(msgpack.packb(fields))


def emission_items(table: EmissionTable) -> dict[str, Any]:
    """The fields of a reply's map for `n` and the emissions."""
    emitted = {name: _column_items(column) for name, column in table.columns.items()}
    return {"n": table.num_sequences, "emitted": emitted}


def decode_emissions(body: Mapping[str, Any], n: int) -> EmissionTable:
    """The emissions of `n` sequences in a reply's map. Raises InvalidRequest."""
    emitted = body.get("emitted")
    if not isinstance(emitted, dict) or not all(isinstance(name, str) for name in emitted):
        raise InvalidRequest("`emitted` must be a map by name.")
    return EmissionTable(n, {name: _decode_column(name, column, n) for name, column in emitted.items()})


def decode_lens(lens: object, n: int, name: str = "lens") -> list[int]:
    """A number for each of `n` sequences of a reply. Raises InvalidRequest, which names the field."""
    if not isinstance(lens, bytes) or len(lens) != 4 * n:
        raise InvalidRequest(f"`{name}` must be bytes of n little-endian uint32.")
    lengths: list[int] = np.frombuffer(lens, _UINT32).tolist()
    return lengths


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value] if not _SCALARS.issuperset(map(type, value)) else list(value)
    return value


def _count(fields: object, index: int, room: int) -> int:
    """The number of items of a sequence. Raises InvalidRequest for more than `room`, and for what no field can hold."""
    if not isinstance(fields, dict):
        raise InvalidRequest(f"`sequences` item {index} must be a map.")
    if not fields:
        raise EmptyInput(f"Sequence {index} has no field.")
    total = 0
    for name, value in fields.items():
        if not isinstance(name, str):
            raise InvalidRequest(f"Sequence {index}: a field's name must be a string.")
        total += _count_value(value, index, name, room - total)
    return total


def _count_value(value: object, index: int, name: str, room: int) -> int:
    """The number of items of a field, level by level: nothing is entered that is too large."""
    total = 0
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        total += len(level)
        lists = [] if _SCALARS.issuperset(map(type, level)) else [item for item in level if type(item) not in _SCALARS]
        if not all(isinstance(item, list) for item in lists):
            raise _fault(index, name, "must hold numbers, strings and booleans, or lists of them")
        if not lists:
            return total
        if max(map(len, lists)) > MAX_LIST:
            raise _fault(index, name, f"has a list of more than {MAX_LIST} items")
        if total + sum(map(len, lists)) > room:
            break
        level = [item for one in lists for item in one]
    else:
        raise _fault(index, name, f"has lists more than {MAX_DEPTH} deep")
    raise _fault(index, name, f"is too large: the fields of a record hold at most {MAX_ITEMS:,} items")


def _fault(index: int, name: str, fault: str) -> InvalidRequest:
    """The name is the client's own, so it stands where a worker's log leaves it out."""
    return InvalidRequest(f"Sequence {index}: a field {fault}. Given: field {name[:40]!r}")


def _column_items(column: EmissionColumn) -> dict[str, Any]:
    values = column.values if sys.byteorder == "little" else column.values.byteswap()
    return {
        "lens": struct.pack(f"<{len(column.lens)}I", *column.lens),
        "shape": values.shape,
        "dtype": values.dtype.name,
        "data": values.tobytes(),
    }


def _decode_column(name: str, column: object, n: int) -> EmissionColumn:
    if not isinstance(column, dict):
        raise InvalidRequest(f"`emitted.{name[:40]}` must be a map.")
    lens, shape, dtype, data = (column.get(key) for key in ("lens", "shape", "dtype", "data"))
    lengths = decode_lens(lens, n, f"emitted.{name[:40]}.lens")
    element = EMITTED_DTYPES.get(dtype) if isinstance(dtype, str) else None
    if element is None or not isinstance(data, bytes):
        one_of = ", ".join(EMITTED_DTYPES)
        raise InvalidRequest(f"`emitted.{name[:40]}`: `data` must be bytes and `dtype` one of {one_of}.")
    num_rows = sum(lengths)
    width = _width(shape, num_rows)
    if width < 1 or num_rows * width * element.itemsize != len(data):
        raise InvalidRequest(
            f"`emitted.{name[:40]}.shape` must be [{num_rows}, at least 1], as `lens` add up to, and agree with `data`."
        )
    values: Any = np.frombuffer(data, element)  # of one of the two types
    return EmissionColumn(values.reshape(num_rows, width), tuple(lengths))


def _width(shape: object, num_rows: int) -> int:
    """The second number of a shape of so many rows; 0 where it is no such shape."""
    if not isinstance(shape, Sequence) or len(shape) != 2 or any(type(size) is not int for size in shape):
        return 0
    return int(shape[1]) if shape[0] == num_rows and 0 < shape[1] < 2**32 else 0
