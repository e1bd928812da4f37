"""Arrow's rows as plain objects; values that Python cannot represent do not end a job."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa  # imported on first use of Parquet: it takes a tenth of a second

# Bytes that are not UTF-8 and times out of range are ValueErrors; unknown time zones, KeyErrors.
_CONVERSION_ERRORS = (ValueError, OverflowError, KeyError)


def objects_of(batch: "pa.RecordBatch") -> list[dict[str, Any]]:
    """One object a row. Values without a JSON form (times, decimals) become Arrow's text of them."""
    import pyarrow as pa

    names = batch.schema.names
    columns = [_with_text(column) for column in batch.columns]
    return rows_of(pa.RecordBatch.from_arrays(columns, names=names))


def rows_of(batch: "pa.RecordBatch") -> list[dict[str, Any]]:
    """One mapping a row, of Python's values."""
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except _CONVERSION_ERRORS:
        values = zip(*[[_readable(scalar) for scalar in column] for column in batch.columns], strict=True)
        rows = [dict(zip(batch.schema.names, row, strict=True)) for row in values]
    return rows


def _with_text(column: "pa.Array") -> "pa.Array":
    import pyarrow as pa

    kind = _text_type(column.type)
    if kind == column.type:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException:  # a time zone or an interval that Arrow cannot write
        return column


def _text_type(kind: "pa.DataType") -> "pa.DataType":
    """The type with strings in place of types without a JSON form, at any depth."""
    import pyarrow as pa

    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return pa.string()
    if pa.types.is_dictionary(kind):
        text_kind = _text_type(kind.value_type)
        return kind if text_kind == kind.value_type else text_kind
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_text_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_text_type(kind.key_type), _text_type(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_text_type(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_text_type(kind.value_type)))
    return kind


def _readable(scalar: "pa.Scalar") -> Any:
    """The value, with a mark for each byte that is not UTF-8; None where it has neither value nor text."""
    import pyarrow as pa

    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        if pa.types.is_nested(scalar.type):
            return None
        return scalar.cast(pa.binary()).as_py().decode(errors="replace")
    except _CONVERSION_ERRORS:
        return None
