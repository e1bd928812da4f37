"""Options of generation, with the names and the meaning of transformers' generation_config.json."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from penstock.engine.errors import InvalidOption

_DEFAULT_NEW_TOKENS = 20  # transformers' default
_MAX_ENDS = 64  # of each candidate of each beam, all are compared
_MAX_BEAMS = 32  # each beam is a row of a step; all of a sequence run in one step
_MAX_WORDS = 256  # of several tokens in bad_words_ids: each is compared with the history of each row at each step
_MIN_PENALTY, _MAX_PENALTY = -3, 10  # powers of a length that float32 holds
_MIN_FACTOR, _MAX_FACTOR = 0.01, 100  # of scores; beyond, products may leave float32. 0.01 is vLLM's least temperature

# Options that are not implemented -> the value that changes nothing.
_NEUTRAL: dict[str, Any] = {
    "diversity_penalty": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "guidance_scale": 1.0,
    "min_p": 0.0,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "penalty_alpha": 0.0,
    "remove_invalid_values": False,
    "token_healing": False,
    "typical_p": 1.0,
}
# Options of one way to choose tokens. The other ways do not read them, so there any number is as good as the default.
_OF_SAMPLING = ("temperature", "top_k", "top_p")
_OF_BEAMS = ("length_penalty", "early_stopping")
_LENGTHS = {"max_new_tokens": 0, "min_new_tokens": 0, "max_length": 1, "min_length": 1}  # start tokens that each counts
# Options that change no token, some of them of an assistant model, which a checkpoint does not have.
_IGNORED = frozenset(
    (
        "_from_model_config",
        "assistant_confidence_threshold",
        "assistant_early_exit",
        "assistant_lookbehind",
        "bos_token_id",
        "cache_implementation",
        "disable_compile",
        "is_assistant",
        "low_memory",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "output_attentions",
        "output_hidden_states",
        "output_logits",
        "output_scores",
        "pad_token_id",
        "return_dict_in_generate",
        "target_lookbehind",
        "transformers_version",
        "use_cache",
    )
)


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """How tokens are chosen, and when generation ends. The start token counts in no length."""

    decoder_start_token_id: int
    eos_token_ids: tuple[int, ...] = ()  # generation ends with one of them, each listed once; none: at max_new_tokens
    max_new_tokens: int = _DEFAULT_NEW_TOKENS
    min_new_tokens: int = 0  # no token of eos_token_ids before
    num_beams: int = 1
    length_penalty: float = 1.0  # of beams: a finished score is divided by length ** length_penalty
    early_stopping: bool | Literal["never"] = False  # of beams
    do_sample: bool = False
    temperature: float = 1.0  # this and the next two are of sampling
    top_k: int = 50  # 0: all
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0  # 0: any n-gram may come again
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()  # of the first token, or of the second where the first is forced
    forced_bos_token_id: int | None = None
    forced_eos_token_ids: tuple[int, ...] = ()  # the last token, at max_new_tokens
    renormalize_logits: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "eos_token_ids", tuple(dict.fromkeys(self.eos_token_ids)))
        num_ends = len(self.eos_token_ids)
        _require(num_ends <= _MAX_ENDS, "eos_token_id", num_ends, f"at most {_MAX_ENDS} tokens")
        _require(self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "at least 1")
        _require(self.min_new_tokens >= 0, "min_new_tokens", self.min_new_tokens, "at least 0")
        _require(1 <= self.num_beams <= _MAX_BEAMS, "num_beams", self.num_beams, f"in [1, {_MAX_BEAMS}]")
        _require(
            _MIN_PENALTY <= self.length_penalty <= _MAX_PENALTY,
            "length_penalty",
            self.length_penalty,
            f"in [{_MIN_PENALTY}, {_MAX_PENALTY}]",
        )
        _require(
            self.early_stopping in (True, False, "never"), "early_stopping", self.early_stopping, "true, false, never"
        )
        _require_factor("temperature", self.temperature)
        _require(self.top_k >= 0, "top_k", self.top_k, "at least 0")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]")
        _require_factor("repetition_penalty", self.repetition_penalty)
        _require(self.no_repeat_ngram_size >= 0, "no_repeat_ngram_size", self.no_repeat_ngram_size, "at least 0")
        _require(all(self.bad_words_ids), "bad_words_ids", self.bad_words_ids, "sequences of at least one token")
        num_words = sum([len(word) > 1 for word in self.bad_words_ids])
        _require(
            num_words <= _MAX_WORDS, "bad_words_ids", num_words, f"at most {_MAX_WORDS} sequences of several tokens"
        )
        if self.do_sample and self.num_beams > 1:
            raise InvalidOption("do_sample with num_beams above 1 is not implemented. Use one of them.")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "GenerationOptions":
        """The options of a generation_config.json. A value of None is the default.

        Raises InvalidOption, which names the option, for a wrong value and for an option that is not implemented.
        """
        given = {name: value for name, value in config.items() if value is not None and name not in _IGNORED}
        given = {name: value for name, value in given.items() if name not in _NEUTRAL or value != _NEUTRAL[name]}
        start = given.pop("decoder_start_token_id", config.get("bos_token_id"))
        if not isinstance(start, int):
            raise InvalidOption(f"decoder_start_token_id must be a token. Given: {start!r}")
        values: dict[str, Any] = {"decoder_start_token_id": start}
        for name, kind in _KINDS.items():
            if name in given:
                values[_FIELDS.get(name, name)] = kind(name, given.pop(name))
        if given:
            raise InvalidOption(f"{min(given)} is not implemented. Leave it out.")
        unread = (() if values.get("do_sample") else _OF_SAMPLING) + (
            () if values.get("num_beams", 1) > 1 else _OF_BEAMS
        )
        return cls(**_without_start({name: value for name, value in values.items() if name not in unread}))

    def require_tokens(self, vocab_size: int) -> None:
        """Raise InvalidOption for a token that is not in the vocabulary."""
        bos = () if self.forced_bos_token_id is None else (self.forced_bos_token_id,)
        for name, tokens in (
            ("decoder_start_token_id", (self.decoder_start_token_id,)),
            ("eos_token_id", self.eos_token_ids),
            ("bad_words_ids", tuple(token for word in self.bad_words_ids for token in word)),
            ("suppress_tokens", self.suppress_tokens),
            ("begin_suppress_tokens", self.begin_suppress_tokens),
            ("forced_bos_token_id", bos),
            ("forced_eos_token_id", self.forced_eos_token_ids),
        ):
            wrong = [one for one in (min(tokens, default=0), max(tokens, default=0)) if not 0 <= one < vocab_size]
            if wrong:
                raise InvalidOption(f"{name} must be a token in [0, {vocab_size}). Given: {wrong[0]!r}")

    def require_token_left(self, vocab_size: int) -> None:
        """Raise InvalidOption where they leave out every token of the vocabulary."""
        ends = self.eos_token_ids if self.min_new_tokens else ()
        left_out = {*self.suppress_tokens, *ends, *(word[0] for word in self.bad_words_ids if len(word) == 1)}
        if len(left_out) >= vocab_size:
            raise InvalidOption("suppress_tokens and bad_words_ids leave no token.")

    def without_lengths(self) -> "GenerationOptions":
        """The options with one value of max_new_tokens: those of equal requests that differ in it are equal."""
        return replace(self, max_new_tokens=_DEFAULT_NEW_TOKENS)


def clip_lengths(config: Mapping[str, Any], most_tokens: int) -> dict[str, Any]:
    """A model's generation_config.json, with lengths that the model or its worker allows."""
    return {
        name: min(value, most_tokens + _LENGTHS[name]) if name in _LENGTHS and isinstance(value, int) else value
        for name, value in config.items()
    }


def _without_start(values: dict[str, Any]) -> dict[str, Any]:
    """Lengths without the start token. max_length and min_length count it; the others precede them, and do not."""
    for new, total in (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length")):
        length = values.pop(total, None)
        if length is not None:
            values.setdefault(new, max(0, length - 1))
    return values


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise InvalidOption(f"{name} must be {wanted}. Given: {value!r}")


def _require_factor(name: str, value: float) -> None:
    _require(_MIN_FACTOR <= value <= _MAX_FACTOR, name, value, f"in [{_MIN_FACTOR}, {_MAX_FACTOR}]")


def _int(name: str, value: Any) -> int:
    _require(isinstance(value, int) and not isinstance(value, bool), name, value, "an integer")
    return int(value)


def _float(name: str, value: Any) -> float:
    _require(isinstance(value, int | float) and not isinstance(value, bool), name, value, "a number")
    return float(value)


def _bool(name: str, value: Any) -> bool:
    _require(isinstance(value, bool), name, value, "true or false")
    return bool(value)


def _tokens(name: str, value: Any) -> tuple[int, ...]:
    """One token, or a list of them."""
    if isinstance(value, list | tuple) and set(map(type, value)) == {int}:  # at once: it may be a long list
        return tuple(value)
    return tuple(_int(name, token) for token in (value if isinstance(value, list | tuple) else [value]))


def _words(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    _require(isinstance(value, list | tuple), name, value, "a list of lists of tokens")
    return tuple(_tokens(name, word) for word in value)


def _stopping(name: str, value: Any) -> Any:
    return value if value == "never" else _bool(name, value)


_FIELDS = {"eos_token_id": "eos_token_ids", "forced_eos_token_id": "forced_eos_token_ids"}
_KINDS: dict[str, Any] = {
    "eos_token_id": _tokens,
    "max_new_tokens": _int,
    "max_length": _int,
    "min_new_tokens": _int,
    "min_length": _int,
    "num_beams": _int,
    "length_penalty": _float,
    "early_stopping": _stopping,
    "do_sample": _bool,
    "temperature": _float,
    "top_k": _int,
    "top_p": _float,
    "repetition_penalty": _float,
    "no_repeat_ngram_size": _int,
    "bad_words_ids": _words,
    "suppress_tokens": _tokens,
    "begin_suppress_tokens": _tokens,
    "forced_bos_token_id": _int,
    "forced_eos_token_id": _tokens,
    "renormalize_logits": _bool,
}
# All that a config may say of how tokens are chosen, implemented or not.
OPTION_NAMES = frozenset((*_KINDS, *_NEUTRAL, "bos_token_id", "decoder_start_token_id"))
