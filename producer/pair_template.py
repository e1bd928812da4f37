"""A checkpoint's chat template as the text around a query and a document, as CrossEncoder fills it.

The template is run when the tokenizer is loaded, on texts that show what it does. Requests are filled into its result.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
_Contents = tuple[str, str, str]  # an instruction ("": none), a query and a document
_Layout = Sequence[str | int]  # the template's own texts, and the places of contents between them
_Render = Callable[[_Contents], str]

_ROLES = ("system", "query", "document")
_MARKS = ("\ue000instruction\ue000", "\ue000query\ue000", "\ue000document\ue000")  # of private use: in no template
_UNUSUAL = (" ", "a", " a b ", "\n\n", "\na\n", "a\r\n\tb", "é中", "<a & \"b\" 'c'>", "{{ a }}", "{% a %}", "a " * 9999)
_LITERAL = re.compile(r"'([^']*)'|\"([^\"]*)\"")  # of a template: what it may look for in a text
# Of `apply_chat_template`: they change more than the text that a template gives.
_NOT_OF_THE_TEXT = {
    *("chat_template", "continue_final_message", "documents", "max_length", "padding", "restore_suffix"),
    *("return_assistant_tokens_mask", "return_dict", "return_tensors", "sanitize_control_tokens", "tokenize"),
    *("tokenizer_kwargs", "tools", "truncation"),
}


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The text that a model is given for an instruction, a query and a document."""

    plain: _Layout  # without an instruction
    instructed: _Layout
    ending: Int32Array  # tokens that every such text ends with: those of the template's own last text

    def text(self, pair: tuple[str, str], instruction: str) -> str:
        """The whole text. instruction: a prompt; "" for none."""
        return _filled(self.instructed if instruction else self.plain, (instruction, *pair))

    def cut(self, ids: Int32Array, max_tokens: int, *, cuts_left: bool) -> Int32Array:
        """Tokens of a whole text, cut to `max_tokens`: the template's ending stays."""
        if len(ids) < max_tokens:
            return ids
        kept, ending = ids[len(ids) - max_tokens :] if cuts_left else ids[:max_tokens], self.ending[-max_tokens:]
        return np.concatenate([kept[: max_tokens - len(ending)], ending])


def pair_template(wrapped: Any, form: str, options: Mapping[str, Any]) -> PairTemplate:
    """The template of a transformers tokenizer.

    form: "flat" or "structured", how messages hold their texts. options: variables of the template, and what else
    `apply_chat_template` takes. Raises ValueError for a template that does more than put its own text around
    contents.
    """
    if refused := sorted(options.keys() & _NOT_OF_THE_TEXT):
        raise ValueError(f"A chat template with {', '.join(refused)} (processing_kwargs) is not implemented.")
    if not isinstance(wrapped.chat_template, str):
        raise ValueError("The transformer's configuration asks for a chat template, and the tokenizer has none.")
    if "strftime_now" in wrapped.chat_template:
        raise ValueError("A chat template with the date (strftime_now) is not implemented: answers would change.")

    def render(contents: _Contents) -> str:
        try:
            return str(wrapped.apply_chat_template(_messages(contents, form), tokenize=False, **options))
        except Exception as error:  # of the template's own, and of many unrelated types
            raise ValueError(f"The chat template cannot be filled with a query and a document: {error!r}") from error

    def ending(layout: _Layout, instruction: str) -> list[int]:
        texts = [_filled(layout, (instruction, content, content)) for content in ("0", "1 2 3 4")]
        return _common_ending(*[wrapped(text, add_special_tokens=False)["input_ids"] for text in texts])

    plain, instructed = (_layout(render, wrapped.chat_template, instruction) for instruction in ("", _MARKS[0]))
    own = ending(plain, "")
    if any(ending(instructed, instruction) != own for instruction in ("a", "b c")):
        raise ValueError("A chat template that ends with the instruction is not implemented.")
    return PairTemplate(plain, instructed, np.array(own, np.int32))


def _messages(contents: _Contents, form: str) -> list[dict[str, Any]]:
    """The messages that sentence-transformers makes: none of the system where there is no instruction."""
    return [
        {"role": role, "content": text if form == "flat" else [{"type": "text", "text": text}]}
        for role, text in zip(_ROLES, contents, strict=True)
        if text or role != "system"
    ]


def _layout(render: _Render, template: str, instruction: str) -> _Layout:
    """The template's own texts around contents, with an instruction or without, proven on unusual ones."""
    parts = re.split(f"({'|'.join(_MARKS)})", render((instruction, _MARKS[1], _MARKS[2])))
    layout = [_MARKS.index(part) if part in _MARKS else part for part in parts]
    if sorted(part for part in layout if part in (0, 1, 2)) not in ([1, 2], [0, 1, 2]):
        raise ValueError("A chat template must hold the query and the document, each once; this one does not.")
    for contents in _probes(template, has_instruction=bool(instruction)):
        if render(contents) != _filled(layout, contents):
            raise ValueError(
                f"A chat template that changes its contents, or goes by them, is not implemented. It does so with "
                f"{contents[0][:40]!r}, {contents[1][:40]!r}, {contents[2][:40]!r}."
            )
    return layout


def _probes(template: str, *, has_instruction: bool) -> Iterator[_Contents]:
    """Contents that a template may change or look for: unusual ones, and the literals of its own source."""
    literals = [one or other for one, other in _LITERAL.findall(template) if one or other]
    usual = "b" if has_instruction else ""
    yield usual, "", ""
    for content in (*_UNUSUAL, *literals, *(f"a{literal}b" for literal in literals)):
        yield usual, content, "c\n"
        yield usual, "c\n", content
        if has_instruction:
            yield content, "c\n", "d"


def _filled(layout: _Layout, contents: _Contents) -> str:
    return "".join([contents[part] if isinstance(part, int) else part for part in layout])


def _common_ending(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The tokens that both end with; none where one is the other's end."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    count = next((index for index, (token, its) in enumerate(pairs) if token != its), 0)
    return list(one[len(one) - count :])
