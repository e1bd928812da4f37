"""The text of a record: the value at a place in its document, or a template of several."""

import string
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from penstock.producer.errors import InvalidRequest
from penstock.worker.routes.connect_json import UNAVAILABLE
from penstock.worker.routes.pointer import Pointer


class TextSource(NamedTuple):
    """Literal texts and places, in turns: `{title}: {body}` is ("", title), (": ", body), ("", None)."""

    parts: tuple[tuple[str, Pointer | None], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """A place (`/after/title`, `title`, or nothing for the whole document), or a template with places in braces.

        Raises:
            ValueError: not a template, or not a place.
        """
        return cls(tuple(_parts(text) if "{" in text or "}" in text else [("", Pointer.parse(text))]))

    def read(self, document: Any) -> str | None:
        """The text; None where all places of it are absent or null. In a template one that is missing is empty.

        Raises:
            InvalidRequest: a place has something else than text, or a text that the record lacks. The message names it.
        """
        if len(self.parts) == 1 and (place := self.parts[0][1]) is not None and not self.parts[0][0]:
            return _text_at(place, document)
        found = [(literal, None if place is None else _text_at(place, document)) for literal, place in self.parts]
        if all(text is None for _, text in found):
            return None
        return "".join([literal + (text or "") for literal, text in found])


def _parts(template: str) -> Iterator[tuple[str, Pointer | None]]:
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"must be a template: {str(error).lower()}") from error
    for literal, place, form, conversion in parsed:
        if form or conversion or place == "":
            raise ValueError("must be a template with nothing but the names of fields, or JSON pointers, in braces")
        yield literal, None if place is None else Pointer.parse(place)
    if all(place is None for _, place, _, _ in parsed):
        raise ValueError("must be a template with a field in braces")


def _text_at(place: Pointer, document: Any) -> str | None:
    value = place.find(document)
    if value == UNAVAILABLE:
        raise InvalidRequest(
            f"The change event does not have the text at {str(place)!r}, which is long and was not changed. Set the "
            "table's REPLICA IDENTITY to FULL."
        )
    if value is None or isinstance(value, str):
        return value
    raise InvalidRequest(f"The text at {str(place) or 'the top'!r} must be a string. It is {_kind(value)}.")


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    return "an array" if isinstance(value, list) else "an object"
