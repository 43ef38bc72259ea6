import pytest

from ogrpo.policy import DecoderConfig, RopeScaling
from ogrpo.policy.config import SHAPES

# As published with the models, in the layout of transformers 4.
QWEN25_HALF_B = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
LLAMA3_SCALING = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
LLAMA = {
    **QWEN25_HALF_B,
    "architectures": ["LlamaForCausalLM"],
    "head_dim": 64,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": LLAMA3_SCALING,
}


def test_reads_the_published_qwen_layout():
    config = DecoderConfig.from_hf(QWEN25_HALF_B)
    assert config == SHAPES["qwen2.5-0.5b"]
    assert config.family.qkv_bias
    assert not config.family.qk_norm


def test_both_rope_layouts_read_the_same():
    nested = {k: v for k, v in LLAMA.items() if k not in ("rope_theta", "rope_scaling")}
    nested["rope_parameters"] = {**LLAMA3_SCALING, "rope_theta": 1e6}
    config = DecoderConfig.from_hf(nested)
    assert config == DecoderConfig.from_hf(LLAMA)
    assert config.rope_scaling == RopeScaling(
        factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*LlamaForCausalLM"),
        ({"hidden_size": None}, "no 'hidden_size'"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "no 'head_dim'"),
        ({"hidden_size": "896"}, "'hidden_size' is '896': give a whole number"),
        ({"rope_theta": None}, "no 'rope_theta'"),
        ({"attention_bias": True}, "attention_bias=True; only False"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "no 'factor'"),
        ({"num_key_value_heads": 4}, r"num_heads \(14\) must be a multiple of num_kv_heads \(4\)"),
        ({"vocab_size": 10**12}, "'vocab_size' is 1000000000000: give a whole .* to 2147483647"),
        ({"tie_word_embeddings": "false"}, "'tie_word_embeddings' is 'false': give true or false"),
        ({"hidden_size": 897}, "'hidden_size' is 897: give a multiple of num_attention_heads = 14"),
        ({"rope_theta": float("nan")}, "'rope_theta' is nan: give a finite number above 0"),
        (
            {"rope_scaling": {**LLAMA3_SCALING, "low_freq_factor": 4.0}},
            "'low_freq_factor' is 4.0: give a number below high_freq_factor = 4",
        ),
        ({"architectures": [["Qwen2ForCausalLM"]]}, "'architectures' is .*: give a list of texts"),
    ],
)
def test_what_is_not_computed_here_is_refused(change, message):
    with pytest.raises(ValueError, match=f"^there/config.json.*{message}"):
        DecoderConfig.from_hf({**QWEN25_HALF_B, **change}, "there/config.json")
