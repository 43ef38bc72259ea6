"""The shape of a decoder: its Hugging Face `config.json`, and shapes by name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Family(NamedTuple):
    """The traits that an architecture's name implies beyond its numbers."""

    model_type: str
    qkv_bias: bool
    """Whether the query, key and value projections carry a bias."""
    qk_norm: bool
    """Whether queries and keys are RMS-normalised per head."""


FAMILIES: Mapping[str, Family] = {
    "Qwen2ForCausalLM": Family("qwen2", qkv_bias=True, qk_norm=False),
    "Qwen3ForCausalLM": Family("qwen3", qkv_bias=False, qk_norm=True),
    "LlamaForCausalLM": Family("llama", qkv_bias=False, qk_norm=False),
}

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")

# Features of these families that would change the mathematics, with the only value computed here.
_UNSUPPORTED: Mapping[str, Any] = {
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "hidden_act": "silu",
    "quantization_config": None,
}

MOST = 2**31 - 1
"""The largest size: token ids and positions are int32."""


class Fields(NamedTuple):
    """The fields of a `config.json` and the file that they are from, which every error names."""

    values: Mapping[str, Any]
    where: str

    def refuse(self, name: str, expected: str) -> ValueError:
        """Returns the error about a value, with the expected one as its remedy."""
        return ValueError(f"{self.where}: {name!r} is {self.values[name]!r:.60}: give {expected}")

    def has(self, name: str) -> bool:
        """Whether there is a value that is not null."""
        return self.values.get(name) is not None

    def whole(self, name: str) -> int:
        """Returns a size or a count, at least 1."""
        value = self._required(name)
        if type(value) is not int or not 1 <= value <= MOST:
            raise self.refuse(name, f"a whole number from 1 to {MOST}")
        return value

    def positive(self, name: str) -> float:
        """Returns a finite number above 0."""
        value = self._required(name)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self.refuse(name, "a finite number above 0")
        return float(value)

    def truth(self, name: str) -> bool:
        """Returns true or false; false where it is missing."""
        value = self.values.get(name)
        if not isinstance(value, bool | None):
            raise self.refuse(name, "true or false, without quotation marks")
        return bool(value)

    def inner(self, name: str) -> Mapping[str, Any]:
        """Returns an object; empty where it is missing."""
        value = self.values.get(name)
        if not isinstance(value, Mapping | None):
            raise self.refuse(name, "an object")
        return value or {}

    def texts(self, name: str) -> list[str]:
        """Returns a list of texts; empty where it is missing."""
        value = self.values[name] if self.has(name) else []
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.refuse(name, "a list of texts")
        return value

    def _required(self, name: str) -> Any:
        if not self.has(name):
            raise ValueError(f"{self.where} has no {name!r}, which the model's shape needs")
        return self.values[name]


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's frequency-dependent stretch of the rotary embedding (rope type "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


class Sides(NamedTuple):
    """The widths of a matrix's input and output."""

    inputs: int
    outputs: int


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The shape of a decoder; hashable, so a static argument of jitted functions.

    `architecture` is the Hugging Face class name; it decides the `family`.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    tie_embeddings: bool
    max_positions: int
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        """Raises ValueError on an unknown architecture or on sizes that cannot form a decoder."""
        if self.architecture not in FAMILIES:
            raise ValueError(
                f"unsupported architecture {self.architecture!r}; supported:"
                f" {', '.join(sorted(FAMILIES))}"
            )
        for name in (*_SIZES, "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads"
                f" ({self.num_kv_heads}): each key/value head serves the same number of queries"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for the rotary embedding, got {self.head_dim}")

    @property
    def family(self) -> Family:
        """The traits of its architecture."""
        return FAMILIES[self.architecture]

    @property
    def projections(self) -> dict[str, Sides]:
        """The sides of a layer's matrices, by the names of `ATTENTION` and `MLP`."""
        width, middle = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "q_proj": Sides(width, queries),
            "k_proj": Sides(width, keys),
            "v_proj": Sides(width, keys),
            "o_proj": Sides(queries, width),
            "gate_proj": Sides(width, middle),
            "up_proj": Sides(width, middle),
            "down_proj": Sides(middle, width),
        }

    @classmethod
    def from_hf(cls, values: Mapping[str, Any], where: str = "config.json") -> "DecoderConfig":
        """Reads the fields of a `config.json` of transformers 4 or 5.

        Version 5 nests the rotary embedding in `rope_parameters`, version 4 has `rope_theta` and
        `rope_scaling` at the top.

        Args:
          values: the fields.
          where: the file that they are from, for errors.

        Raises:
          ValueError: an architecture, a rope type or an option that is not computed here, or a
            field that is missing, of another type or out of range; with file, field and value.
        """
        fields = Fields(values, where)
        names = fields.texts("architectures")
        if len(names) != 1 or names[0] not in FAMILIES:
            raise ValueError(
                f"{where} must name one architecture in 'architectures', got {names!r:.120};"
                f" supported: {', '.join(sorted(FAMILIES))}"
            )
        _check_supported(fields)
        theta = {"rope_theta": values.get("rope_theta")}
        scaling, nested = fields.inner("rope_scaling"), fields.inner("rope_parameters")
        rope = Fields({**theta, **scaling, **nested}, where)
        sizes = {name: fields.whole(theirs) for name, theirs in _SIZES.items()}
        if fields.has("head_dim") or names[0] == "Qwen3ForCausalLM":
            head_dim = fields.whole("head_dim")
        else:  # all but Qwen3 may divide the width by the heads
            head_dim, rest = divmod(sizes["hidden_size"], sizes["num_heads"])
            if rest:
                multiple = f"a multiple of num_attention_heads = {sizes['num_heads']}"
                raise fields.refuse("hidden_size", multiple)
        try:
            return cls(
                architecture=names[0],
                **sizes,
                head_dim=head_dim,
                rope_theta=rope.positive("rope_theta"),
                rope_scaling=_rope_scaling(rope),
                rms_norm_eps=fields.positive("rms_norm_eps"),
                tie_embeddings=fields.truth("tie_word_embeddings"),
            )
        except ValueError as error:
            if where in str(error):
                raise
            raise ValueError(f"{where}: {error}") from error

    def to_hf(self) -> dict[str, Any]:
        """Returns the fields of a `config.json` in a layout that transformers 4 and 5 both read."""
        scaling = self.rope_scaling
        fields = {
            "architectures": [self.architecture],
            "model_type": self.family.model_type,
            **{theirs: getattr(self, name) for name, theirs in _SIZES.items()},
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": scaling
            and {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_positions,
            },
            "tie_word_embeddings": self.tie_embeddings,
            "attention_dropout": 0.0,
            "use_cache": True,
        }
        # transformers' Qwen2 has its bias built in; for the others the field must say no.
        return fields if self.family.qkv_bias else {**fields, "attention_bias": False}


_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "max_positions": "max_position_embeddings",
}
"""Our name of a size -> its field in `config.json`."""


def _check_supported(fields: Fields) -> None:
    for name, computed in _UNSUPPORTED.items():
        value = fields.values.get(name, computed)
        if type(value) is not type(computed) or value != computed:
            raise ValueError(
                f"{fields.where} has {name}={value!r:.60}; only {computed!r} is supported"
            )
    if kinds := set(fields.texts("layer_types")) - {"full_attention"}:
        raise ValueError(
            f"{fields.where} has layer_types {sorted(kinds)!r:.120}; only 'full_attention' is"
            " supported"
        )


def _rope_scaling(rope: Fields) -> RopeScaling | None:
    # "type" is the spelling of transformers before 4.43.
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if rope.has("partial_rotary_factor") and rope.positive("partial_rotary_factor") != 1.0:
        raise rope.refuse("partial_rotary_factor", "1.0 or leave it out: whole heads are rotated")
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"{rope.where} has rope type {kind!r:.60}; supported: 'default', 'llama3'")
    factor = rope.positive("factor")
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if low >= high:
        raise rope.refuse("low_freq_factor", f"a number below high_freq_factor = {high:g}")
    return RopeScaling(
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=rope.whole("original_max_position_embeddings"),
    )


def _qwen(
    version: int,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int,
    *,
    tied: bool = True,
) -> DecoderConfig:
    return DecoderConfig(
        architecture=f"Qwen{version}ForCausalLM",
        vocab_size=151_936 if tied else 152_064,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads if version == 2 else 128,
        rope_theta=1_000_000.0,
        rms_norm_eps=1e-6,
        tie_embeddings=tied,
        max_positions=32_768 if version == 2 else 40_960,
    )


def tiny(vocab_size: int) -> DecoderConfig:
    """Returns a Qwen2 decoder of about 0.1 M parameters; vLLM serves no head below its 32."""
    shape = _qwen(2, hidden=64, intermediate=176, layers=2, heads=2, kv_heads=1)
    return replace(shape, vocab_size=vocab_size, rope_theta=10_000.0, max_positions=1024)


def small(vocab_size: int) -> DecoderConfig:
    """Returns one of three layers, about 0.15 M parameters, which looks up before it computes."""
    return replace(tiny(vocab_size), num_layers=3)


SHAPES: dict[str, DecoderConfig] = {
    "tiny": tiny(176),
    "smollm2-135m": DecoderConfig(
        architecture="LlamaForCausalLM",
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rope_theta=100_000.0,
        rms_norm_eps=1e-5,
        tie_embeddings=True,
        max_positions=8192,
    ),
    "qwen2.5-0.5b": _qwen(2, 896, 4864, 24, 14, 2),
    "qwen2.5-1.5b": _qwen(2, 1536, 8960, 28, 12, 2),
    "qwen2.5-3b": _qwen(2, 2048, 11_008, 36, 16, 2),
    "qwen2.5-7b": _qwen(2, 3584, 18_944, 28, 28, 4, tied=False),
    "qwen3-4b": _qwen(3, 2560, 9728, 36, 32, 8),
}
"""Decoders by name; the tests hold their parameter counts to those of the model cards."""
