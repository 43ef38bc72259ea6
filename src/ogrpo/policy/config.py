"""The shape of a decoder, read from and written to the Hugging Face `config.json` layouts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


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
        for name in _SIZES:
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
    def from_hf(cls, fields: Mapping[str, Any]) -> "DecoderConfig":
        """Read the fields of a `config.json` of transformers 4 or 5.

        Version 5 nests the rotary embedding in `rope_parameters`, version 4 has `rope_theta` and
        `rope_scaling` at the top.

        Raises:
          ValueError: an architecture, a rope type or an option that is not computed here, or a
            field that is missing.
        """
        architecture = _architecture(fields)
        _check_supported(fields)
        rope = _rope_fields(fields)
        hidden, heads = _int(fields, "hidden_size"), _int(fields, "num_attention_heads")
        # Qwen3's head size is its own; in the other two families it follows from the width.
        follows = {} if architecture == "Qwen3ForCausalLM" else {"head_dim": hidden // heads}
        given = {name: value for name, value in fields.items() if value is not None}
        return cls(
            architecture=architecture,
            vocab_size=_int(fields, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_int(fields, "intermediate_size"),
            num_layers=_int(fields, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_int(fields, "num_key_value_heads"),
            head_dim=_int({**follows, **given}, "head_dim"),
            rope_theta=_float(rope, "rope_theta"),
            rope_scaling=_rope_scaling(rope),
            rms_norm_eps=_float(fields, "rms_norm_eps"),
            tie_embeddings=bool(fields.get("tie_word_embeddings", False)),
            max_positions=_int(fields, "max_position_embeddings"),
        )

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


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_positions",
)


def _family(architecture: str) -> Family:
    if architecture not in FAMILIES:
        raise ValueError(
            f"unsupported architecture {architecture!r}; supported: {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[architecture]


def _architecture(fields: Mapping[str, Any]) -> str:
    names = fields.get("architectures") or []
    if len(names) != 1:
        raise ValueError(
            f"config.json must name one architecture in 'architectures', got {names!r};"
            f" supported: {', '.join(sorted(FAMILIES))}"
        )
    _family(names[0])
    return names[0]


def _required(fields: Mapping[str, Any], name: str) -> Any:
    if fields.get(name) is None:
        raise ValueError(f"config.json has no {name!r}")
    return fields[name]


def _int(fields: Mapping[str, Any], name: str) -> int:
    value = _required(fields, name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"config.json must have a whole number as {name!r}, got {value!r}")
    return value


def _float(fields: Mapping[str, Any], name: str) -> float:
    value = _required(fields, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"config.json must have a number as {name!r}, got {value!r}")
    return float(value)


def _check_supported(fields: Mapping[str, Any]) -> None:
    for name, computed in _UNSUPPORTED.items():
        if fields.get(name, computed) != computed:
            raise ValueError(
                f"config.json has {name}={fields[name]!r}; only {computed!r} is supported"
            )
    kinds = set(fields.get("layer_types") or ()) - {"full_attention"}
    if kinds:
        raise ValueError(
            f"config.json has layer_types {sorted(kinds)}; only 'full_attention' is supported"
        )


def _rope_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    nested = fields.get("rope_parameters") or {}
    return {"rope_theta": fields.get("rope_theta"), **(fields.get("rope_scaling") or {}), **nested}


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    # "type" is the spelling of transformers before 4.43.
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("config.json has a partial_rotary_factor; only whole heads are rotated")
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"config.json has rope type {kind!r}; supported: 'default', 'llama3'")
    return RopeScaling(
        factor=_float(rope, "factor"),
        low_freq_factor=_float(rope, "low_freq_factor"),
        high_freq_factor=_float(rope, "high_freq_factor"),
        original_max_positions=_int(rope, "original_max_position_embeddings"),
    )


def _llama3_fields(scaling: RopeScaling) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_positions,
    }
