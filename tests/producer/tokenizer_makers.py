"""Small tokenizers of many kinds, saved by transformers, some with options that their tokenizer.json does not have."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import transformers

Make = Callable[[Path], None]

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCÉéöß中."
_WORDS = ["the", "card", "Card", "where", "is", "my", "étude", "etude", "a", "<b>"]
_UNUSED = [f"<unk_{index}>" for index in range(2, 103)]  # of PEGASUS
_CONTINUED = [f"##{letter}" for letter in _LETTERS]


def edit(directory: Path, name: str = "tokenizer_config.json", **changes: Any) -> None:
    """Change keys of a JSON object in a file, which need not exist; `...` removes one."""
    path = directory / name
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept = {key: value for key, value in (content | changes).items() if value is not ...}
    path.write_text(json.dumps(kept), encoding="utf-8")


def _word_piece(kind: str, model_type: str, first: list[str], **options: Any) -> Make:
    def make(directory: Path) -> None:
        vocabulary = {word: i for i, word in enumerate(dict.fromkeys([*first, *_LETTERS, *_CONTINUED, *_WORDS]))}
        getattr(transformers, kind)(vocab=vocabulary, model_max_length=12).save_pretrained(directory)
        edit(directory, **options)
        edit(directory, "config.json", model_type=model_type)

    return make


def _bert(model_type: str = "bert", **options: Any) -> Make:
    return _word_piece("BertTokenizer", model_type, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], **options)


def _byte_pairs(model_type: str, **options: Any) -> Make:
    def make(directory: Path) -> None:
        alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        merges = [("c", "a"), ("r", "d"), ("ca", "rd"), ("Ġ", "card"), ("Ġ", "t"), ("h", "e")]
        words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet, *("".join(merge) for merge in merges)]
        kind: Any = transformers.RobertaTokenizer
        kind(vocab={word: i for i, word in enumerate(words)}, merges=merges, model_max_length=12).save_pretrained(
            directory
        )
        edit(directory, **options)
        edit(directory, "config.json", model_type=model_type)

    return make


def _unigram(kind: str, model_type: str, first: list[str], **options: Any) -> Make:
    def make(directory: Path) -> None:
        words = dict.fromkeys([*first, "▁", *_LETTERS, *(f"▁{word}" for word in _WORDS)])
        vocabulary = [(word, 0.0 if i < len(first) else -1.0 - i / 50) for i, word in enumerate(words)]
        getattr(transformers, kind)(vocab=vocabulary, model_max_length=12).save_pretrained(directory)
        edit(directory, **options)
        edit(directory, "config.json", model_type=model_type)

    return make


def _framed(kind: str, first: list[str], letters: Sequence[str], frame: str, **options: Any) -> Make:
    """Byte pairs of a decoder, whose tokenizer.json has the special tokens of `frame`, a template's `single`."""

    def make(directory: Path) -> None:
        blank = "Ġ" if "Ġ" in letters else "▁"
        merges = [("c", "a"), ("r", "d"), ("ca", "rd"), (blank, "card"), (blank, "t"), ("h", "e")]
        words = dict.fromkeys([*first, *letters, *("".join(merge) for merge in merges)])
        vocabulary = {word: i for i, word in enumerate(words)}
        getattr(transformers, kind)(vocab=vocabulary, merges=merges, model_max_length=12).save_pretrained(directory)
        tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=frame,
            pair=f"{frame} {frame.replace('$A', '$B')}",
            special_tokens=[(token, vocabulary[token]) for token in frame.split() if token in vocabulary],
        )
        tokenizer.save(str(directory / "tokenizer.json"))
        edit(directory, **options)
        edit(directory, "config.json", model_type="llama")

    return make


def _nllb(**options: Any) -> Make:
    def make(directory: Path) -> None:
        merges = [("▁", "c"), ("a", "r"), ("▁c", "ar"), ("▁car", "d")]
        words = ["<s>", "<pad>", "</s>", "<unk>", "▁", *_LETTERS, *("".join(merge) for merge in merges)]
        kind: Any = transformers.NllbTokenizer
        vocabulary = {word: i for i, word in enumerate(dict.fromkeys(words))}
        kind(vocab=vocabulary, merges=merges, model_max_length=12, **options).save_pretrained(directory)
        edit(directory, "config.json", model_type="m2m_100")

    return make


_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_qwen = partial(
    _framed, "Qwen2Tokenizer", ["<|endoftext|>", "<|im_end|>"], sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
)
_llama = partial(_framed, "LlamaTokenizer", ["<unk>", "<s>", "</s>"], [*_BYTES, "▁", *_LETTERS])
_gemma = partial(_framed, "GemmaTokenizer", ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"], [*_BYTES, "▁", *_LETTERS])


def _then(make: Make, change: Callable[[Path], None]) -> Make:
    def both(directory: Path) -> None:
        make(directory)
        change(directory)

    return both


def _backend(**options: Any) -> Make:
    return _then(_bert(), lambda path: edit(path, tokenizer_class="PreTrainedTokenizerFast", **options))


def _added_in_a_file(path: Path) -> None:
    edit(path, added_tokens_decoder=...)
    edit(path, "added_tokens.json", **{"zq zq": 106, "<q>": 107})


def _without(path: Path, *names: str) -> None:
    for name in names:
        (path / name).unlink(missing_ok=True)


def _as_older_files(path: Path) -> None:
    words = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    (path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    _without(path, "tokenizer.json")


_TOKEN = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False, "special": False}


def _listed_in_the_options(path: Path, more: Sequence[str] = ()) -> None:
    """The file's tokens, and more of these contents."""
    options = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    file = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    stated = {str(token.pop("id")): token for token in file["added_tokens"]}
    first = 1 + max(file["model"]["vocab"].values())
    stated |= {str(first + index): _TOKEN | {"content": content} for index, content in enumerate(more)}
    edit(path, **(options | {"added_tokens_decoder": stated}))


MAKERS: dict[str, Make] = {
    "bert": _bert(),
    "bert, cased by its options": _bert(do_lower_case=False),
    "bert, accents kept": _bert(strip_accents=False),
    "bert, cased, accents stripped": _bert(do_lower_case=False, strip_accents=True),
    "bert, Chinese words whole": _bert(tokenize_chinese_chars=False),
    "bert, cut on the left": _bert(truncation_side="left"),
    "bert, without types": _bert(model_input_names=["input_ids", "attention_mask"]),
    "bert, other special tokens": _bert(sep_token="[MASK]", mask_token="<m>"),
    "bert, a token in added_tokens_decoder": _then(_bert(), partial(_listed_in_the_options, more=("cardcard",))),
    "bert, its tokens in added_tokens_decoder": _then(_bert(), _listed_in_the_options),
    "bert, tokens in added_tokens.json": _then(_bert(), _added_in_a_file),
    "bert, vocab.txt alone": _then(_bert(), _as_older_files),
    "bert, tokenizer.json alone": _then(_bert(), lambda path: _without(path, "tokenizer_config.json", "config.json")),
    "bert, no options": _then(_bert(), lambda path: _without(path, "tokenizer_config.json")),
    "backend": _backend(),
    "backend with types": _backend(model_input_names=["input_ids", "token_type_ids", "attention_mask"]),
    "backend with an unknown token": _backend(extra_special_tokens=["<q>"]),
    "distilbert": _bert("distilbert", tokenizer_class="DistilBertTokenizer"),
    "electra": _bert("electra"),
    "modernbert": _bert("modernbert"),
    "mpnet": _word_piece("MPNetTokenizer", "mpnet", ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"]),
    "roberta": _byte_pairs("roberta"),
    "roberta with a prefixed space": _byte_pairs("roberta", add_prefix_space=True),
    "roberta with a tokenizer of bert": _bert("roberta", model_input_names=["input_ids", "attention_mask"]),
    "bart": _byte_pairs("bart"),
    "bart, cut on the left": _byte_pairs("bart", truncation_side="left"),
    "xlm-roberta": _unigram("XLMRobertaTokenizer", "xlm-roberta", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]),
    "camembert": _unigram("CamembertTokenizer", "camembert", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]),
    "albert": _unigram("AlbertTokenizer", "albert", ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]),
    "deberta-v2": _unigram("DebertaV2Tokenizer", "deberta-v2", ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]),
    "qwen2": _qwen("$A", padding_side="left"),
    "qwen3": _qwen("$A <|endoftext|>", padding_side="left", add_bos_token=False),
    "llama": _llama("<s> $A", add_bos_token=True, pad_token="</s>"),
    "llama, ended by its options": _llama("<s> $A </s>", add_eos_token=True, pad_token="<unk>", padding_side="left"),
    "gemma": _gemma("<bos> $A <eos>", add_bos_token=True, add_eos_token=True, padding_side="left"),
    "mbart": _unigram("MBartTokenizer", "mbart", ["<s>", "<pad>", "</s>", "<unk>"]),
    "mbart-50": _unigram("MBart50Tokenizer", "mbart", ["<unk>", "<s>", "</s>"]),
    "nllb": _nllb(),
    "nllb, the language behind the text": _nllb(legacy_behaviour=True, src_lang="fra_Latn"),
    "pegasus": _unigram("PegasusTokenizer", "pegasus", ["<pad>", "</s>", "<mask_1>", "<mask_2>", *_UNUSED, "<unk>"]),
    "t5": _unigram("T5Tokenizer", "t5", ["<pad>", "</s>", "<unk>"]),
}
