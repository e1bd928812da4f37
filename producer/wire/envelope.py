"""The map of every record's value: its version, its bounds, and fields that requests and replies share."""

from collections.abc import Callable, Mapping
from typing import Any

import msgpack

from penstock.producer.errors import InvalidRequest
from penstock.producer.wire.options import show
from penstock.producer.wire.reply_rows import is_int

VERSION = 1
_SMALL_BYTES = 64 * 1024  # a record this short cannot take much memory
_MAX_FIELDS = 64


def unpack(value: bytes | None, max_bytes: int, max_list: int, max_containers: int) -> dict[str, Any]:
    """One msgpack map of this version. Raises InvalidRequest; bounds are checked before memory is allocated."""
    if not value:
        raise InvalidRequest("The record has no value; a msgpack map was expected.")
    check_size(value, max_bytes)
    count_containers = _container_bound(max_containers) if len(value) > _SMALL_BYTES else None
    try:
        body = msgpack.unpackb(
            value,
            use_list=True,
            object_hook=count_containers,
            list_hook=count_containers,
            ext_hook=_refuse_extension,
            max_array_len=max_list,
            max_map_len=_MAX_FIELDS,
        )
    except UnicodeDecodeError as error:
        raise InvalidRequest("A string in the record is not UTF-8.") from error
    except msgpack.StackError as error:
        raise InvalidRequest("The record is nested too deeply.") from error
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        reason = str(error).rstrip(".") or "a byte that msgpack does not know"
        raise InvalidRequest(f"The record is not a msgpack map within the size bounds: {reason}.") from error
    if not isinstance(body, dict):
        raise InvalidRequest(f"The record must be a msgpack map. Given: {show(body)}")
    check_version(body.get("v"))
    return body


def check_size(value: bytes, max_bytes: int) -> None:
    """Raise InvalidRequest for a value that is too large to be read."""
    if len(value) > max_bytes:
        raise InvalidRequest(f"The record has {len(value):,} bytes; at most {max_bytes:,} are accepted.")


def check_version(version: object) -> None:
    """Raise InvalidRequest for any version but this one."""
    if version != VERSION or not is_int(version):
        raise InvalidRequest(f"`v` must be {VERSION}. Given: {show(version)}")


def string(body: Mapping[str, Any], name: str) -> str:
    """A field that must be a string with at least one character."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"`{name}` is missing or not a non-empty string.")
    return value


def _container_bound(max_containers: int) -> Callable[[Any], Any]:
    """A hook that ends unpacking when a record holds more maps and lists than a valid one can."""
    count = 0

    def hook(container: Any) -> Any:
        nonlocal count
        count += 1
        if count > max_containers:
            raise ValueError(f"more than {max_containers} nested maps and lists")
        return container

    return hook


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not part of the format")
