"""The field that names the model of a result, beside the result."""

from typing import NamedTuple, Self

from penstock.engine.types import ModelInfo
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.settings import RouteSettings


class RevisionField(NamedTuple):
    """A record whose result is null has null there too."""

    name: str  # of the field, in the object that has the result
    model: str  # what it says of every result

    @classmethod
    def of(cls, settings: RouteSettings, info: ModelInfo) -> Self | None:
        """The field that settings ask for. Equal revisions are one checkpoint, whatever the names before them."""
        if settings.revision_field is None:
            return None
        return cls(Pointer.parse(settings.revision_field).names[-1], model_text(info.name, info.answers_revision))


def model_text(name: str, revision: str) -> str:
    """A model as the field names it."""
    return f"{name}@{revision}"
