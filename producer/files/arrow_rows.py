"""Arrow's rows as plain objects: every value that is there finds a form, and none ends a job."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa  # at run time only where Parquet is met: it takes a tenth of a second to load

# Bytes that are not UTF-8 and times out of range are ValueErrors; unknown time zones, KeyErrors.
_NO_PYTHON_VALUE = (ValueError, OverflowError, KeyError)


def objects_of(batch: "pa.RecordBatch") -> list[dict[str, Any]]:
    """One object a row. What JSON has no word for (times, decimals) becomes the text that Arrow gives it."""
    import pyarrow as pa

    names = batch.schema.names
    columns = [_worded(column) for column in batch.columns]
    try:
        rows: list[dict[str, Any]] = pa.RecordBatch.from_arrays(columns, names=names).to_pylist()
    except _NO_PYTHON_VALUE:
        values = zip(*[[_readable(scalar) for scalar in column] for column in columns], strict=True)
        rows = [dict(zip(names, row, strict=True)) for row in values]
    return rows


def _worded(column: "pa.Array") -> "pa.Array":
    import pyarrow as pa

    kind = _worded_type(column.type)
    if kind == column.type:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException:  # a time zone or an interval that Arrow cannot write either
        return column


def _worded_type(kind: "pa.DataType") -> "pa.DataType":
    """The type with text in place of what JSON has no word for, however deep it lies."""
    import pyarrow as pa

    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return pa.string()
    if pa.types.is_dictionary(kind):
        worded = _worded_type(kind.value_type)
        return kind if worded == kind.value_type else worded
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_worded_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_worded_type(kind.key_type), _worded_type(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_worded_type(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_worded_type(kind.value_type)))
    return kind


def _readable(scalar: "pa.Scalar") -> Any:
    """The value, with a mark for each byte that is not UTF-8; nothing where neither Arrow nor Python has words."""
    import pyarrow as pa

    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        if pa.types.is_nested(scalar.type):
            return None
        return scalar.cast(pa.binary()).as_py().decode(errors="replace")
    except _NO_PYTHON_VALUE:
        return None
