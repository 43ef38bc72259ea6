"""The shape of a decoder, read from and written to the Hugging Face `config.json` layouts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ogrpo.policy.fields import Fields


class Family(NamedTuple):
    """What an architecture name implies beyond its numbers."""

    model_type: str
    qkv_bias: bool
    qk_norm: bool


FAMILIES: Mapping[str, Family] = {
    "Qwen2ForCausalLM": Family("qwen2", qkv_bias=True, qk_norm=False),
    "Qwen3ForCausalLM": Family("qwen3", qkv_bias=False, qk_norm=True),
    "LlamaForCausalLM": Family("llama", qkv_bias=False, qk_norm=False),
}

# Features of these families that would change the mathematics, with the only value computed here.
_UNSUPPORTED: Mapping[str, Any] = {
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "hidden_act": "silu",
    "quantization_config": None,
}


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's frequency-dependent stretch of the rotary embedding (rope type "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


class Sides(NamedTuple):
    """Of a matrix that maps inputs to outputs."""

    inputs: int
    outputs: int


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The shape of a decoder; hashable, so a static argument of jitted functions.

    `architecture` is the Hugging Face class name; it decides `qkv_bias` and `qk_norm`.
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
        """Raise ValueError on an unknown architecture or on sizes that cannot form a decoder."""
        _family(self.architecture)
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
    def qkv_bias(self) -> bool:
        """Whether the query, key and value projections carry a bias (Qwen2)."""
        return _family(self.architecture).qkv_bias

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are RMS-normalised per head (Qwen3)."""
        return _family(self.architecture).qk_norm

    @property
    def projections(self) -> dict[str, Sides]:
        """The matrices of a layer by name."""
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
        """Read the fields of a `config.json` of transformers 4 or 5.

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
        architecture = _architecture(fields)
        _check_supported(fields)
        rope = _rope_fields(fields)
        shape = {name: fields.whole(theirs) for name, theirs in _SIZES.items()}
        try:
            return cls(
                architecture=architecture,
                **shape,
                head_dim=_head_dim(architecture, fields),
                rope_theta=rope.positive("rope_theta"),
                rope_scaling=_rope_scaling(rope),
                rms_norm_eps=fields.positive("rms_norm_eps"),
                tie_embeddings=fields.truth("tie_word_embeddings"),
            )
        except ValueError as error:
            raise error if where in str(error) else ValueError(f"{where}: {error}") from error

    def to_hf(self) -> dict[str, Any]:
        """The fields of a `config.json`, in the layout that transformers 4 and 5 both read."""
        fields = {
            "architectures": [self.architecture],
            "model_type": _family(self.architecture).model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": None
            if self.rope_scaling is None
            else _llama3_fields(self.rope_scaling),
            "tie_word_embeddings": self.tie_embeddings,
            "attention_dropout": 0.0,
            "use_cache": True,
        }
        # transformers' Qwen2 has its bias built in; for the others the field must say no.
        return fields if self.qkv_bias else {**fields, "attention_bias": False}


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


def _family(architecture: str) -> Family:
    if architecture not in FAMILIES:
        raise ValueError(
            f"unsupported architecture {architecture!r}; supported: {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[architecture]


def _architecture(fields: Fields) -> str:
    names = fields.texts("architectures")
    if len(names) != 1 or names[0] not in FAMILIES:
        raise ValueError(
            f"{fields.where} must name one architecture in 'architectures', got {names!r:.120};"
            f" supported: {', '.join(sorted(FAMILIES))}"
        )
    return names[0]


def _head_dim(architecture: str, fields: Fields) -> int:
    """Qwen3's head size is its own; in the other two families it may follow from the width."""
    if fields.has("head_dim") or architecture == "Qwen3ForCausalLM":
        return fields.whole("head_dim")
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    if hidden % heads:
        raise fields.refuse("hidden_size", f"a multiple of num_attention_heads = {heads}")
    return hidden // heads


def _check_supported(fields: Fields) -> None:
    for name, computed in _UNSUPPORTED.items():
        value = fields.values.get(name, computed)
        if type(value) is not type(computed) or value != computed:
            raise ValueError(
                f"{fields.where} has {name}={value!r:.60}; only {computed!r} is supported"
            )
    kinds = set(fields.texts("layer_types")) - {"full_attention"}
    if kinds:
        raise ValueError(
            f"{fields.where} has layer_types {sorted(kinds)!r:.120}; only 'full_attention' is"
            " supported"
        )


def _rope_fields(fields: Fields) -> Fields:
    theta = {"rope_theta": fields.values.get("rope_theta")}
    scaling, nested = fields.inner("rope_scaling"), fields.inner("rope_parameters")
    return Fields({**theta, **scaling, **nested}, fields.where)


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


def _llama3_fields(scaling: RopeScaling) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_positions,
    }
