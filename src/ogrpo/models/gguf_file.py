"""GGUF files, the format of llama.cpp: a decoder's shape, weights, tokenizer and chat template.

llama.cpp writes sizes as fields `ARCHITECTURE.NAME`, tensors under names of its own, and the rows
of q and k of *llama* models in the order of its interleaved rotary embedding, which is undone here.

Of tokenizers, made as transformers has them, only byte-level BPE is read (`tokenizer.ggml.model`
gpt2). How a text is cut before its pairs are merged is code in llama.cpp, named by
`tokenizer.ggml.pre`: a name that is not known here is refused, since a wrong cut gives other tokens
than the model was trained on without any error.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf.quants import dequantize
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
from ogrpo.policy.attention import inverse_frequencies
from ogrpo.policy.config import FAMILIES, DecoderConfig, RopeScaling
from ogrpo.policy.pretrained import tensor_slots

ARCHITECTURES = {family.model_type: name for name, family in FAMILIES.items()}
VERSION = version("gguf")
_ROPE = "rope_freqs.weight"
_TORN = (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError)
"""What the reader raises on bytes that are no whole GGUF file."""


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Names the file whose fields are of another type, or fewer, than its kind has."""
    try:
        yield
    except (*_TORN, ArithmeticError) as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        raise ValueError(
            f"{path} has fields that no file of its kind has ({error!r:.200}): get it anew"
        ) from error


class GgufFile:
    """A GGUF file of one of the decoder's families.

    Raises:
      ValueError: the file is missing, torn or no GGUF file, or holds another architecture, a tensor
        that the architecture lacks, or a quantisation that the `gguf` package cannot read.
    """

    def __init__(self, path: Path) -> None:
        """Reads the header and maps the tensors into memory."""
        self.path = path
        if not path.is_file():
            raise ValueError(f"{path} is missing: give a GGUF file")
        try:
            reader = gguf.GGUFReader(path)
            self._fields = {name: field.contents() for name, field in reader.fields.items()}
        except _TORN as error:
            raise ValueError(
                f"{path} is no whole GGUF file, or of a kind that gguf {VERSION} cannot read"
                f" ({error}): get it anew"
            ) from error
        self.architecture = self.field("general.architecture")
        if self.architecture not in ARCHITECTURES:
            raise ValueError(
                f"{path} holds the architecture {self.architecture!r}; supported:"
                f" {', '.join(sorted(ARCHITECTURES))}"
            )
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        with named(path):
            self.config = self._read_config()
            self.names = self._check_names()

    def field(self, name: str, default: Any = None) -> Any:
        """Returns the value of a field; without one the default, and an error without that."""
        value = self._fields.get(name, default)
        if value is None:
            raise ValueError(f"{self.path} lacks the field {name}")
        return value

    def get(self, name: str) -> Any:
        """Returns the value of a field, or None."""
        return self._fields.get(name)

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields Hugging Face names with float32 weights.

        Raises:
          ValueError: a quantisation that cannot be read, another shape than the fields say, or
            weights that are not finite; names the tensor.
        """
        slots = tensor_slots(self.config)
        heads = {"q_proj": self.config.num_heads, "k_proj": self.config.num_kv_heads}
        for name, theirs in self.names.items():
            stored = self._tensors[theirs]
            shape = tuple(int(size) for size in reversed(stored.shape))
            if shape != slots[name].shape:
                raise ValueError(
                    f"{self.path}: {theirs} has shape {list(shape)}; the fields make it"
                    f" {list(slots[name].shape)}"
                )
            try:
                weight = dequantize(stored.data, stored.tensor_type).reshape(shape)
            except (NotImplementedError, ValueError) as error:
                raise ValueError(
                    f"{self.path}: {theirs} is stored as {stored.tensor_type.name}, which gguf"
                    f" {VERSION} cannot read ({error})"
                ) from error
            weight = np.asarray(weight, np.float32)
            if not np.isfinite(weight).all():
                raise ValueError(f"{self.path}: {theirs} has weights that are NaN or infinite")
            projection = name.split(".")[-2]
            if self.architecture == "llama" and projection in heads:
                # llama.cpp has rows that rotate together side by side; here they lie in two halves.
                count = heads[projection]
                pairs = weight.reshape(count, shape[0] // count // 2, 2, -1)
                weight = pairs.swapaxes(1, 2).reshape(shape)
            yield name, weight

    def _read_config(self) -> DecoderConfig:
        kind = self.architecture

        def size(name: str, default: Any = None) -> int:
            value = self.field(f"{kind}.{name}", default)
            if not isinstance(value, int):
                raise ValueError(f"{self.path}: {kind}.{name} is {value!r:.60}: not one number")
            return value

        def real(name: str, default: float | None = None) -> float:
            # Stored as float32: 1e-5 is read as what prints as 1e-5.
            return float(str(np.float32(self.field(f"{kind}.{name}", default))))

        if size("expert_count", 0):
            raise ValueError(
                f"{self.path} is a mixture of experts; only dense decoders are computed"
            )
        if "token_embd.weight" not in self._tensors:
            raise ValueError(f"{self.path} lacks the tensor token_embd.weight")
        heads = size("attention.head_count")
        head_dim = size("attention.key_length", size("embedding_length") // heads)
        for name in ("attention.value_length", "rope.dimension_count"):
            if size(name, head_dim) != head_dim:
                raise ValueError(
                    f"{self.path}: {kind}.{name} is {size(name)}, and heads have {head_dim}"
                    " dimensions: only decoders that have one number for both are computed"
                )
        names = (f"{kind}.rope.scaling.factor", f"{kind}.rope.scale_linear")
        scaled = any(self.field(name, 1.0) not in (0, 1) for name in names)
        scaling = self.field(f"{kind}.rope.scaling.type", "linear" if scaled else "none")
        if scaling != "none":
            raise ValueError(
                f"{self.path} has rope scaling {scaling!r}; supported: none, and llama 3's"
            )
        try:
            config = DecoderConfig(
                architecture=ARCHITECTURES[kind],
                vocab_size=int(self._tensors["token_embd.weight"].shape[1]),
                hidden_size=size("embedding_length"),
                intermediate_size=size("feed_forward_length"),
                num_layers=size("block_count"),
                num_heads=heads,
                num_kv_heads=size("attention.head_count_kv", heads),
                head_dim=head_dim,
                max_positions=size("context_length"),
                rope_theta=real("rope.freq_base", 10_000.0),
                rms_norm_eps=real("attention.layer_norm_rms_epsilon"),
                tie_embeddings="output.weight" not in self._tensors,
            )
            return replace(config, rope_scaling=self._rope_scaling(config))
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error

    def _rope_scaling(self, plain: DecoderConfig) -> RopeScaling | None:
        """Returns llama 3's parameters, which must give the factors that GGUF has alone.

        llama.cpp stores what it divides the frequencies of `plain` by.
        """
        if _ROPE not in self._tensors:
            return None
        stored = np.asarray(self._tensors[_ROPE].data, np.float64)
        scaling = RopeScaling(
            factor=float(stored.max()),
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_positions=8192,
        )
        stretched = inverse_frequencies(replace(plain, rope_scaling=scaling))
        factors = inverse_frequencies(plain) / stretched
        if stored.shape != factors.shape or not np.allclose(stored, factors, rtol=1e-4):
            raise ValueError(f"{_ROPE} holds other factors than those of llama 3's rope scaling")
        return scaling

    def _check_names(self) -> dict[str, str]:
        """Returns the file's tensors by their Hugging Face names: all of a decoder's, no others."""
        if self.config.num_layers > len(self._tensors):  # before a name is made for each
            count = f"{self.config.num_layers:,} layers and {len(self._tensors):,} tensors"
            raise ValueError(f"{self.path} has {count}: get it anew")
        architectures = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
        layers = self.config.num_layers
        table = gguf.get_tensor_name_map(architectures[self.architecture], layers)
        slots = tensor_slots(self.config)
        names = {name: str(table.get_name(name, (".weight", ".bias"))) for name in slots}
        stored = self._tensors.keys() - {_ROPE}
        for what, wrong in (
            ("lacks", {name for name, theirs in names.items() if theirs not in stored}),
            ("has, unknown to it,", stored - {*names.values()}),
        ):
            if wrong:
                shown = ", ".join(sorted(wrong)[:3]) + (" ..." if len(wrong) > 3 else "")
                raise ValueError(f"{self.path}, of {self.config.architecture}, {what} {shown}")
        return names


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Values of `tokenizer.ggml.token_type` that mean something here."""


class PreTokenizer(NamedTuple):
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
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "gpt-2": PreTokenizer(lambda: pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": PreTokenizer(_single_digits),
    "qwen2": PreTokenizer(_by_regex(rf"{_CONTRACTIONS}{_WORDS}\p{{N}}|{_REST}"), nfc=True),
    "llama-bpe": PreTokenizer(
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
    with named(file.path):
        return _tokenizer(file)


def _tokenizer(file: GgufFile) -> TextTokenizer:
    kind, pre = file.field("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise ValueError(
            f"{file.path} has a tokenizer of kind {kind!r}, cut as {pre!r}; known are gpt2"
            f" (byte-level BPE) cut as {', '.join(PRE_TOKENIZERS)}: give a Hugging Face folder with"
            " the model's own tokenizer.json instead"
        )
    cut = PRE_TOKENIZERS[pre]
    tokens = file.field("tokenizer.ggml.tokens")
    types = file.field("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    numbered = enumerate(zip(tokens, types, strict=True))
    vocab = {token: index for index, (token, of) in numbered if of != UNUSED}
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
        texts = (token for token, its in zip(tokens, types, strict=True) if its == of)
        added = [AddedToken(text, special=special, normalized=False) for text in texts]
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
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, vocab[bos])]
        )
    try:
        return TextTokenizer(backend, config, chat_template=file.get("tokenizer.chat_template"))
    except ValueError as error:
        raise ValueError(f"{file.path}: {error}") from error
