"""Shapes of decoders by name; the tests hold their parameter counts to those of the model cards."""

from ogrpo.policy.config import DecoderConfig


def _qwen2_5(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, tied: bool
) -> DecoderConfig:
    return DecoderConfig(
        architecture="Qwen2ForCausalLM",
        vocab_size=151_936 if tied else 152_064,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        rope_theta=1_000_000.0,
        rms_norm_eps=1e-6,
        tie_embeddings=tied,
        max_positions=32_768,
    )


def _qwen3_4b() -> DecoderConfig:
    return DecoderConfig(
        architecture="Qwen3ForCausalLM",
        vocab_size=151_936,
        hidden_size=2560,
        intermediate_size=9728,
        num_layers=36,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rope_theta=1_000_000.0,
        rms_norm_eps=1e-6,
        tie_embeddings=True,
        max_positions=40_960,
    )


def tiny(vocab_size: int) -> DecoderConfig:
    """A Qwen2 decoder of about 0.1 M parameters; head size 32, the least that vLLM serves."""
    return DecoderConfig(
        architecture="Qwen2ForCausalLM",
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=176,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=32,
        rope_theta=10_000.0,
        rms_norm_eps=1e-6,
        tie_embeddings=True,
        max_positions=1024,
    )


SHAPES: dict[str, DecoderConfig] = {
    "tiny": tiny(176),
    "qwen2.5-0.5b": _qwen2_5(896, 4864, 24, 14, 2, tied=True),
    "qwen2.5-1.5b": _qwen2_5(1536, 8960, 28, 12, 2, tied=True),
    "qwen2.5-3b": _qwen2_5(2048, 11_008, 36, 16, 2, tied=True),
    "qwen2.5-7b": _qwen2_5(3584, 18_944, 28, 28, 4, tied=False),
    "qwen3-4b": _qwen3_4b(),
}
