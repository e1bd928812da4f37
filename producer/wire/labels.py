"""Labels of a request: what `classify` chooses from with a model of natural language inference, without training.

Each text is the premise, and each label, in the template's place, a hypothesis: a pair of the two is one sequence.
"""

from typing import Any

from penstock.producer.errors import InvalidRequest, WrongArgument
from penstock.producer.wire.messages import Options, utf8_fault

DEFAULT_TEMPLATE = "This example is {}."  # of transformers' pipeline
MAX_LABEL_CHARS = 1024  # of a label, and of a template
MAX_LABELS_ASKED = 4096
_PLACE = "{}"
TEMPLATE_RULE = f"a string of at most {MAX_LABEL_CHARS} characters with one {{}}, the label's place, and no other brace"


def read_labels(given: object, prefix: str = "") -> tuple[str, ...] | None:
    """The labels of a request or of a caller; None if there are none. `prefix` precedes the name in messages.

    Raises:
        WrongArgument: no list of strings.
        InvalidRequest: no label or too many, two equal ones, or one that is empty, too long or no Unicode.
    """
    if given is None:
        return None
    name = f"`{prefix}labels`"
    if not isinstance(given, list | tuple) or not all(isinstance(label, str) for label in given):
        raise WrongArgument(f"{name} must be a list of strings.")
    if not 1 <= len(given) <= MAX_LABELS_ASKED:
        raise InvalidRequest(f"{name} must be 1 to {MAX_LABELS_ASKED:,} labels. Given: {len(given):,}")
    known: set[str] = set()
    for index, label in enumerate(given):
        if not label.strip():
            raise InvalidRequest(f"{name} item {index} is empty.")
        if len(label) > MAX_LABEL_CHARS:
            raise InvalidRequest(f"{name} item {index} has more than {MAX_LABEL_CHARS:,} characters.")
        if fault := utf8_fault(label):
            raise InvalidRequest(f"{name} item {index} cannot be UTF-8: {fault}.")
        if label in known:
            raise InvalidRequest(f"{name} item {index} equals one before it. Given: {label[:40]!r}")
        known.add(label)
    return tuple(given)


def is_template(value: Any) -> bool:
    """Whether it is a string as TEMPLATE_RULE says."""
    if not isinstance(value, str) or len(value) > MAX_LABEL_CHARS or utf8_fault(value) is not None:
        return False
    before, place, after = value.partition(_PLACE)
    return bool(place) and not {"{", "}"} & {*before, *after}


def hypotheses(options: Options) -> list[str]:
    """The second text of each label's pair. `options` has labels."""
    template = options.template or DEFAULT_TEMPLATE
    return [template.replace(_PLACE, label) for label in options.labels or ()]
