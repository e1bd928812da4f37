"""Places in a document: JSON pointers (RFC 6901), or the name of a field at the top."""

from typing import Any, NamedTuple, Self


class Pointer(NamedTuple):
    """The names on the way to a value; none: the document itself."""

    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """`/after/title`, or `title` for a field at the top. The empty text is the document.

        Raises:
            ValueError: a `~` that is not followed by 0 or 1.
        """
        if not text:
            return cls(())
        parts = text[1:].split("/") if text.startswith("/") else [text]
        return cls(tuple([_unescaped(part) for part in parts]))

    def __str__(self) -> str:
        return "".join(["/" + name.replace("~", "~0").replace("/", "~1") for name in self.names])

    @property
    def parent(self) -> "Pointer":
        """The place of what holds the value."""
        return Pointer(self.names[:-1])

    def find(self, document: Any) -> Any:
        """The value there; None where the document, of dicts and lists, has no such place."""
        for name in self.names:
            if isinstance(document, dict):
                document = document.get(name)
            elif isinstance(document, list):
                document = document[int(name)] if name.isdecimal() and int(name) < len(document) else None
            else:
                return None
        return document


def _unescaped(name: str) -> str:
    if "~" in name.replace("~0", "").replace("~1", ""):
        raise ValueError("must be a JSON pointer: a ~ in it stands before 0 or 1")
    return name.replace("~1", "/").replace("~0", "~")
