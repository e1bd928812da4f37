"""Languages of models that translate between many, such as mBART-50 and NLLB-200: each is a special token.

Their tokenizers put the token of the source's language beside each text. The target's is the first that is generated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.producer.errors import InvalidRequest, UnsupportedTask, did_you_mean
from penstock.producer.wire.generation import SOURCE_LANGUAGE, TARGET_LANGUAGE, GivenOptions

Int32Array = npt.NDArray[np.int32]

_SHOWN = 5  # languages in a message
_FIRST_TOKEN = "forced_bos_token_id"


@dataclass(frozen=True, slots=True)
class Languages:
    """Languages of a tokenizer by their names; of most tokenizers none."""

    tokens: Mapping[str, int] = field(default_factory=dict)  # by name
    place: int = 0  # of the source's token among a text's: of the first tokens, or if negative of the last

    def marked(self, ids: Int32Array, source: str) -> Int32Array:
        """The tokens [n] of a text in the tokenizer's own language as those of the same text in another."""
        changed = ids.copy()
        changed[self.place] = self.token(source)
        return changed

    def token(self, name: str) -> int:
        """The token of a language. Raises UnsupportedTask."""
        if name in self.tokens:
            return self.tokens[name]
        if not self.tokens:
            raise UnsupportedTask(f"The model has no tokenizer that knows languages. Given: {name!r}")
        some = sorted(self.tokens)[:_SHOWN]
        near = did_you_mean(name, self.tokens) or f" It has {', '.join(some)}{', …' * (len(some) == _SHOWN)}."
        raise UnsupportedTask(f"The model has no such language. Given: {name!r}.{near}")

    def resolved(self, generation: GivenOptions) -> GivenOptions:
        """Options with the target's token in place of its name, and without the source, which is among the tokens.

        Raises:
            UnsupportedTask: the model has no such language.
            InvalidRequest: the first token is given too.
        """
        options: dict[str, Any] = dict(generation)
        source, target = options.pop(SOURCE_LANGUAGE, None), options.pop(TARGET_LANGUAGE, None)
        if source is not None:
            self.token(source)
        if target is not None:
            if _FIRST_TOKEN in options:
                raise InvalidRequest(f"Give at most one of `{TARGET_LANGUAGE}` and `{_FIRST_TOKEN}`.")
            options[_FIRST_TOKEN] = self.token(target)
        return tuple(sorted(options.items()))


def source_language(generation: GivenOptions) -> str | None:
    """The language of the texts of a request; None: the tokenizer's own."""
    return next((value for name, value in generation if name == SOURCE_LANGUAGE), None)
