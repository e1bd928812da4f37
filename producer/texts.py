"""Lists of texts on their way to a tokenizer: their sizes, runs of them, and texts that are no Unicode."""

import contextlib
from collections.abc import Iterator, Sequence

from penstock.producer.errors import InvalidRequest
from penstock.producer.wire.messages import Text, utf8_fault

RUN_CHARACTERS = 1 << 16  # of known words looked up in 1.5 ms, which the event loop can wait; in the library 10 ms


def runs(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """Runs of texts of `RUN_CHARACTERS`, so that calls which come meanwhile wait no longer than for one of them."""
    run: list[Text] = []
    count = 0
    for text in texts:
        run.append(text)
        count += num_characters((text,))
        if count >= RUN_CHARACTERS:
            yield run
            run, count = [], 0
    if run:
        yield run


def members(text: Text) -> tuple[str, ...]:
    """The text, or the two of a pair."""
    return text if isinstance(text, tuple) else (text,)


def num_characters(texts: Sequence[Text]) -> int:
    """Of all texts, and both texts of pairs."""
    return sum([len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts])


@contextlib.contextmanager
def refusing_surrogates(texts: Sequence[Text]) -> Iterator[None]:
    """Raise InvalidRequest where the library raises TypeError for text that is not Unicode."""
    try:
        yield
    except TypeError:
        faults = {index: utf8_fault("".join(text)) for index, text in enumerate(texts)}
        rows = {i: InvalidRequest(f"Text {i} cannot be UTF-8: {fault}.") for i, fault in faults.items() if fault}
        if rows:
            raise InvalidRequest(next(iter(rows.values())).message, rows) from None
        raise
