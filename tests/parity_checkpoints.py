"""Small random checkpoints as people serve them, each of which some reader has taken for another model or tokenizer."""

import json
import shutil
import string
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.engine.helpers import randomise, save_encoder, save_tagger, write_json
from tests.engine.rerankers import save_reranker

Make = Callable[[Path], object]

_CHARACTERS = [*string.ascii_letters, *string.digits, *string.punctuation, "é"]
_WORDS = ["where", "is", "my", "card", "Where", "Is", "##s", "the", "weather", "it", "arrived"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_CHARACTERS, *(f"##{one}" for one in _CHARACTERS)]
VOCABULARY += [word for word in _WORDS if word not in VOCABULARY]
_SIZE: Mapping[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 300,
    "pad_token_id": 0,
}


def add_tokenizer(directory: Path, **options: Any) -> None:
    """BERT's WordPiece, as its fast tokenizer is saved."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    make: Any = getattr(transformers, "BertTokenizerFast")  # noqa: B009  # transformers makes the name at run time
    given = {"model_max_length": 256, "do_lower_case": True, **options}
    make(vocab=str(directory / "vocab.txt"), **given).save_pretrained(directory)
    (directory / "vocab.txt").unlink()


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON object; None removes one."""
    found = json.loads(path.read_text(encoding="utf-8")) | changes
    write_json(path, {key: value for key, value in found.items() if value is not None})


def plain_encoder(directory: Path, **tokenizer: Any) -> None:
    save_encoder(directory, "bert", **_SIZE)
    add_tokenizer(directory, **tokenizer)


def sentence_encoder(directory: Path, *, pooling: str = "mean", normalize: bool = True, **tokenizer: Any) -> None:
    """A sentence-transformers directory with prompts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    plain_encoder(directory / "plain", **tokenizer)
    transformer = SentenceTransformer(str(directory / "plain"), device="cpu")[0]
    modules = [transformer, Pooling(32, pooling), *([Normalize()] if normalize else [])]
    model = SentenceTransformer(modules=modules, device="cpu", prompts={"query": "where is: ", "document": ""})
    model.save(str(directory))


def classifier(directory: Path, *, num_labels: int = 3, **config: Any) -> None:
    auto: Any = transformers.AutoModelForSequenceClassification
    model = auto.from_config(transformers.BertConfig(**{**_SIZE, "num_labels": num_labels, **config})).eval()
    randomise(model)
    model.save_pretrained(directory)
    add_tokenizer(directory)


def tagger(directory: Path) -> None:
    save_tagger(directory, "bert", **_SIZE, num_labels=3)
    add_tokenizer(directory)


def generator(directory: Path, **config: Any) -> None:
    sizes = {"vocab_size": len(VOCABULARY), "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    model: Any = transformers.T5ForConditionalGeneration(
        transformers.T5Config.from_dict({**sizes, "decoder_start_token_id": 0, **config})
    )
    model.eval()
    randomise(model)
    model.save_pretrained(directory)
    add_tokenizer(directory)


def cross_encoder(directory: Path, activation: str) -> None:
    """Three labels a pair, as sentence-transformers saves it."""
    from sentence_transformers import CrossEncoder

    classifier(directory / "plain")
    model = CrossEncoder(str(directory / "plain"), device="cpu", activation_fn=getattr(torch.nn, activation)())
    model.save_pretrained(str(directory))


def old_cross_encoder(directory: Path, **stated: Any) -> None:
    """Three labels a pair, as versions 3 to 5 of sentence-transformers saved them."""
    classifier(directory)
    edit(directory / "config.json", **stated)


def _decoder_reranker(directory: Path) -> None:
    """As Qwen3-Reranker: two tokens' logits, of pairs in a chat template."""
    save_reranker(directory / "made")
    shutil.copytree(directory / "made" / "saved", directory, dirs_exist_ok=True)


def _inference(directory: Path, make: Callable[..., object] = classifier, **options: Any) -> None:
    """The same, of natural language inference: also asked with labels."""
    names = ("entailment", "neutral", "contradiction")
    make(directory, **options)
    edit(
        directory / "config.json",
        id2label={str(index): name for index, name in enumerate(names)},
        label2id={name: index for index, name in enumerate(names)},
    )


def _splade(directory: Path) -> None:
    """A plain masked language model."""
    _random("BertForMaskedLM", "BertConfig", directory, **_SIZE)


def _sparse_encoder(directory: Path) -> None:
    """The same in sentence-transformers' layout, with another pooling and prompts."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    _splade(directory / "plain")
    transformer = SparseEncoder(str(directory / "plain"), device="cpu")[0]
    modules = [transformer, SpladePooling("max", "log1p_relu")]
    model = SparseEncoder(modules=modules, device="cpu", prompts={"query": "where is: ", "document": ""})
    model.save(str(directory))


def _multi_vector_encoder(directory: Path) -> None:
    """Queries are expanded with tokens that are not attended to; documents have no vectors of punctuation."""
    from tests.engine.model.test_reference_late_interaction import save_own

    expansion = {"strategy": "fixed", "length": 20, "attend": False}
    _from_elsewhere(directory, partial(save_own, skipped=[".", "?"], document_length=40, query_expansion=expansion))


def _pylate(directory: Path) -> None:
    from tests.engine.model.test_reference_late_interaction import save_pylate

    directory.mkdir()
    save_pylate(directory)


def _stanford(directory: Path) -> None:
    from tests.engine.model.test_reference_late_interaction import save_stanford

    directory.mkdir()
    save_stanford(directory, query_maxlen=16, doc_maxlen=24)


def _bge_m3(directory: Path) -> None:
    """With the two heads of which neither library knows."""
    from tests.engine.model.test_reference_vectors import save_bge_m3

    _from_elsewhere(directory, save_bge_m3)


def _from_elsewhere(directory: Path, save: Callable[[Path], Path]) -> None:
    """The checkpoint that `save` makes in a directory below the one that it is given."""
    (directory / "made").mkdir(parents=True)
    shutil.copytree(save(directory / "made"), directory, dirs_exist_ok=True)


_SIGMOID = "torch.nn.modules.activation.Sigmoid"

SOUND: Mapping[str, Make] = {
    "encoder": plain_encoder,
    "sentence encoder": sentence_encoder,
    "classifier": classifier,
    "classifier of inference": _inference,
    "cross-encoder of inference": partial(_inference, make=cross_encoder, activation="Identity"),
    "reranker": lambda directory: classifier(directory, num_labels=1),
    "reranker of a decoder": _decoder_reranker,
    "cross-encoder of several labels": partial(cross_encoder, activation="Identity"),
    "cross-encoder of several scores": partial(cross_encoder, activation="Sigmoid"),
    "cross-encoder of several scores, of version 4": partial(
        old_cross_encoder, sentence_transformers={"activation_fn": _SIGMOID, "version": "4.0.1"}
    ),
    "cross-encoder of several scores, of version 3": partial(
        old_cross_encoder, sbert_ce_default_activation_function=_SIGMOID
    ),
    "another activation of T5": partial(generator, dense_act_fn="gelu_new"),
    "tagger": tagger,
    "generator": generator,
    "SPLADE": _splade,
    "sparse encoder": _sparse_encoder,
    "multi-vector encoder": _multi_vector_encoder,
    "multi-vector encoder of PyLate": _pylate,
    "multi-vector encoder of Stanford": _stanford,
    "bge-m3": _bge_m3,
}


def _saved(directory: Path, model: Any) -> None:
    randomise(model)
    model.eval().save_pretrained(directory)
    add_tokenizer(directory)


def _quantised(directory: Path) -> None:
    plain_encoder(directory)
    tensors = load_file(directory / "model.safetensors")
    whole = {
        name: (one * 100).to(torch.int8) if name.endswith("dense.weight") else one for name, one in tensors.items()
    }
    save_file(whole, directory / "model.safetensors", metadata={"format": "pt"})
    edit(directory / "config.json", quantization_config={"quant_method": "compressed-tensors"})


def _modules(directory: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    sentence_encoder(directory)
    entries = json.loads((directory / "modules.json").read_text(encoding="utf-8"))
    write_json(directory / "modules.json", change(entries))


def _own_class(directory: Path) -> None:
    _modules(
        directory, lambda entries: [entries[0], entries[1] | {"type": "own_package.attention.Pooling"}, entries[2]]
    )


def _no_pooling(directory: Path) -> None:
    _modules(directory, lambda entries: [entries[0], entries[2]])


def _late_interaction(directory: Path) -> None:
    _modules(directory, lambda entries: entries[:1])
    edit(directory / "config_sentence_transformers.json", model_type="ColBERT")


def _causal(directory: Path) -> None:
    size = {**_SIZE, "num_key_value_heads": 2, "head_dim": 8}
    _saved(directory, transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**size)))


def _encoder_decoder(directory: Path) -> None:
    config = transformers.UMT5Config(vocab_size=len(VOCABULARY), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    _saved(directory, transformers.UMT5ForConditionalGeneration(config))


def _old_limit(directory: Path) -> None:
    sentence_encoder(directory)
    (directory / "sentence_bert_config.json").unlink(missing_ok=True)
    write_json(directory / "sentence_roberta_config.json", {"max_seq_length": 8, "do_lower_case": False})


def _longer_limit(directory: Path) -> None:
    sentence_encoder(directory, model_max_length=8)
    write_json(directory / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": False})


def _lower_case(directory: Path) -> None:
    sentence_encoder(directory, do_lower_case=False)
    write_json(directory / "sentence_bert_config.json", {"max_seq_length": 128, "do_lower_case": True})


def _without_types(directory: Path) -> None:
    classifier(directory, num_labels=1)
    edit(directory / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])


def _cut_on_the_left(directory: Path) -> None:
    classifier(directory)
    edit(directory / "tokenizer_config.json", truncation_side="left", model_max_length=16)


def _pads_in_texts(directory: Path) -> None:
    """RoBERTa's positions: a pad inside a text has none."""
    config = transformers.RobertaConfig(**{**_SIZE, "max_position_embeddings": 302, "type_vocab_size": 1})
    model: Any = transformers.RobertaModel(config)
    model.eval()
    randomise(model)
    model.save_pretrained(directory)
    add_tokenizer(directory, model_input_names=["input_ids", "attention_mask"])


def _random(model_class: str, config_class: str, directory: Path, **config: Any) -> None:
    config = {"vocab_size": len(VOCABULARY), "pad_token_id": 0, **config}
    made = getattr(transformers, config_class)(**config)
    _saved(directory, getattr(transformers, model_class)(made))


def _tagger(directory: Path, **config: Any) -> None:
    save_tagger(directory, "bert", **_SIZE, **config)
    add_tokenizer(directory)


def _beside_modules(directory: Path, **saved: Any) -> None:
    sentence_encoder(directory)
    edit(directory / "config_sentence_transformers.json", **saved)


def _without_modules(directory: Path, make: Make, **saved: Any) -> None:
    """sentence-transformers reads this file only beside a modules.json."""
    make(directory)
    write_json(directory / "config_sentence_transformers.json", saved)


def _template(directory: Path, make: Make) -> None:
    make(directory)
    content = "m['content'] if m['content'] is string else m['content'][0]['text']"
    template = "{% for m in messages %}card {{ " + content + " }} weather{% endfor %}"
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")


def _split_special_tokens(directory: Path) -> None:
    sentence_encoder(directory)
    edit(directory / "tokenizer_config.json", split_special_tokens=True)


def _bytes(directory: Path) -> None:
    """A tagger whose tokens are bytes, a lone blank among them, which covers no character once it is trimmed."""
    alphabet = ["<s>", "<pad>", "</s>", "<unk>", *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
    ids = {token: index for index, token in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(ids, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    make: Any = transformers.PreTrainedTokenizerFast
    save_tagger(directory, "roberta", vocab_size=len(alphabet), max_position_embeddings=302, num_labels=3)
    make(tokenizer_object=backend, model_max_length=256, **names).save_pretrained(directory)


def _stated(directory: Path, make: Make = plain_encoder, **config: Any) -> None:
    make(directory)
    edit(directory / "config.json", **config)


def _windowed(directory: Path) -> None:
    """`sliding_window` is another name of half of `local_attention`, which transformers prefers."""
    save_encoder(directory, "modernbert", **{**_SIZE, "num_hidden_layers": 4, "local_attention": 32})
    add_tokenizer(directory)
    edit(directory / "config.json", sliding_window=4)


def _bart(directory: Path, **config: Any) -> None:
    sizes = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_layers": 2, "decoder_layers": 2}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 300}
    tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
    made = transformers.BartConfig.from_dict(
        {"vocab_size": len(VOCABULARY), "forced_eos_token_id": None, **sizes, **heads, **tokens, **config}
    )
    _saved(directory, transformers.BartForConditionalGeneration(made))


def _untied(directory: Path) -> None:
    """The head is not the table of words, and the file does not have it: transformers fills it at random."""
    _bart(directory)
    edit(directory / "config.json", tie_word_embeddings=False)


def _two_tables(directory: Path) -> None:
    _bart(directory)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.decoder.embed_tokens.weight"] = tensors["model.shared.weight"].flip(0)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _old_options(directory: Path) -> None:
    """Options of generation among those of the model, as versions before 4.26 saved them."""
    _bart(directory)
    (directory / "generation_config.json").unlink()
    edit(directory / "config.json", exponential_decay_length_penalty=[2, 1.5])


def _odd_pooling(directory: Path) -> None:
    sentence_encoder(directory)
    edit(directory / "1_Pooling" / "config.json", token_embeddings_name="token_embeddings")


def _null_type(directory: Path) -> None:
    sentence_encoder(directory)
    path = directory / "config_sentence_transformers.json"
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | {"model_type": None})


def _number_labels(directory: Path) -> None:
    classifier(directory)
    edit(directory / "config.json", id2label={"0": 5, "1": 6, "2": 7})


def _reranker(directory: Path) -> None:
    classifier(directory, num_labels=1)


_IDENTITY: Mapping[str, Any] = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
_GPT2: Mapping[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 300}

MISTAKEN: Mapping[str, Make] = {
    "int8 weights": _quantised,
    "causal attention": partial(_stated, is_causal=True),
    "another window": _windowed,
    "another pooling of a classifier": partial(_stated, make=classifier, classifier_pooling="mean"),
    "fewer positions than rows": partial(_stated, max_position_embeddings=128),
    "more types than rows": partial(_stated, type_vocab_size=4),
    "more words than rows": partial(_stated, vocab_size=4000),
    "an unknown key of the pooling": _odd_pooling,
    "a model_type of null": _null_type,
    "causal attention of a generator": partial(_stated, make=generator, is_causal=True),
    "an untied head that is missing": _untied,
    "two tables of words": _two_tables,
    "options among the model's": _old_options,
    "a module of another package": _own_class,
    "no pooling": _no_pooling,
    "late interaction": _late_interaction,
    "a causal language model": _causal,
    "an encoder-decoder of another family": _encoder_decoder,
    "an old name of the limit": _old_limit,
    "a limit above the tokenizer's": _longer_limit,
    "do_lower_case beside the tokenizer": _lower_case,
    "no token types": _without_types,
    "cut on the left": _cut_on_the_left,
    "pads inside texts": _pads_in_texts,
    "several labels a token": partial(_tagger, num_labels=3, problem_type="multi_label_classification"),
    "one label a token": partial(_tagger, num_labels=1),
    "a cut after Normalize": partial(_beside_modules, truncate_dim=12),
    "a cut without modules": partial(_without_modules, make=plain_encoder, truncate_dim=8),
    "an activation without modules": partial(_without_modules, make=_reranker, **_IDENTITY),
    "a prompt without modules": partial(
        _without_modules, make=_reranker, prompts={"query": "where "}, default_prompt_name="query"
    ),
    "a template of an encoder": partial(_template, make=plain_encoder),
    "a template of a reranker": partial(_template, make=_reranker),
    "special tokens that are split": _split_special_tokens,
    "tokens of no width": _bytes,
    "labels that are numbers": _number_labels,
    "token types that are words": partial(
        _random, "GPT2ForSequenceClassification", "GPT2Config", num_labels=3, **_GPT2
    ),
    "a table of hashes": partial(
        _random,
        "CanineModel",
        "CanineConfig",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    ),
    "a table of its own kind": partial(
        _random,
        "IBertModel",
        "IBertConfig",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    ),
}
