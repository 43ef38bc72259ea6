"""The tokenizer and the chat template inside a GGUF file, as transformers has them.

Only byte-level BPE is read (`tokenizer.ggml.model` gpt2). How a text is cut before its pairs are
merged is code in llama.cpp, named by `tokenizer.ggml.pre`: a name that is not known here is
refused, since a wrong cut gives other tokens than the model was trained on without any error.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.models.gguf_file import GgufFile

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Values of `tokenizer.ggml.token_type` that mean something here."""


class Cut(NamedTuple):
    """The steps that a text passes before its pairs are merged."""

    pre_tokenizer: Callable[[], Any]
    nfc: bool = False
    whole_words_first: bool = False
    """Whether a piece that is a token is taken as it stands (`ignore_merges`)."""
    bos: bool = False
    """Whether a BOS is put before a text where the file does not say."""


def _by_regex(pattern: str) -> Callable[[], Any]:
    return lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _single_digits() -> Any:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])


_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
CUTS: Mapping[str, Cut] = {
    "gpt-2": Cut(lambda: pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": Cut(_single_digits),
    "qwen2": Cut(_by_regex(rf"{_CONTRACTIONS}{_WORDS}\p{{N}}|{_REST}"), nfc=True),
    "llama-bpe": Cut(
        _by_regex(rf"{_CONTRACTIONS}{_WORDS}\p{{N}}{{1,3}}|{_REST}"),
        whole_words_first=True,
        bos=True,
    ),
}


def read_tokenizer(file: GgufFile) -> TextTokenizer:
    """Returns the tokenizer of a GGUF file with its chat template.

    Raises:
      ValueError: it is of a kind that is not known here, or lacks a field; names the file.
    """
    kind, pre = file.field("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in CUTS:
        raise ValueError(
            f"{file.path} has a tokenizer of kind {kind!r}, cut as {pre!r}; known are gpt2"
            f" (byte-level BPE) cut as {', '.join(CUTS)}: give a Hugging Face folder with the"
            " model's own tokenizer.json instead"
        )
    cut = CUTS[pre]
    tokens = file.field("tokenizer.ggml.tokens")
    types = file.field("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    vocab = {
        token: index
        for index, (token, of) in enumerate(zip(tokens, types, strict=True))
        if of != UNUSED
    }
    merges = [tuple(merge.split(" ", 1)) for merge in file.field("tokenizer.ggml.merges")]
    try:
        bpe = models.BPE(vocab, merges, ignore_merges=cut.whole_words_first)
    except Exception as error:  # the library has no class of its own for what it does not take
        raise ValueError(f"{file.path}: its tokenizer cannot be made: {error}") from error
    backend = Tokenizer(bpe)
    parts: Any = backend  # the library's stubs know no setters
    parts.normalizer = normalizers.NFC() if cut.nfc else None
    parts.pre_tokenizer = cut.pre_tokenizer()
    parts.decoder = decoders.ByteLevel()
    for of, special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, its in zip(tokens, types, strict=True)
            if its == of
        ]
        (backend.add_special_tokens if special else backend.add_tokens)(added)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.config.max_positions,
    }
    for name, field in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        index = file.get(f"tokenizer.ggml.{field}_token_id")
        if index is not None and 0 <= index < len(tokens):
            config[f"{name}_token"] = tokens[index]
    bos = config.get("bos_token")
    if bos is not None and file.field("tokenizer.ggml.add_bos_token", cut.bos):
        parts.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos}:1 $B:1",
            special_tokens=[(bos, vocab[bos])],
        )
    try:
        return TextTokenizer(backend, config, chat_template=file.get("tokenizer.chat_template"))
    except ValueError as error:
        raise ValueError(f"{file.path}: {error}") from error
