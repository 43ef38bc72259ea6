"""GGUF files of each family, converted and read again by the decoder's own loader."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.models.convert import convert
from ogrpo.models.gguf_file import GgufFile
from ogrpo.policy import RopeScaling, load_pretrained
from ogrpo.policy.pretrained import to_tensors
from tests.models.tiny_gguf import SPECIAL, TOKENS, small_config, write_gguf
from tests.policy.tiny import FAMILIES
from tests.policy.tiny import make_params as new_params

make_params = functools.cache(new_params)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("quantisation", "error"),
    [("F32", 0.0), ("F16", 5e-4), ("BF16", 4e-3), ("Q8_0", 6e-3), ("Q4_1", 0.08)],
)
def test_a_converted_folder_holds_the_weights(family, quantisation, error, tmp_path):
    config = small_config(family)
    params = make_params(config)
    file = write_gguf(tmp_path / "m.gguf", config, params, quantisation=quantisation)
    read, weights = load_pretrained(convert(file, tmp_path / "folder"), jnp.float32)
    assert read == config
    before, after = to_tensors(config, params), to_tensors(config, weights)
    assert before.keys() == after.keys()
    for name, weight in before.items():
        np.testing.assert_allclose(after[name], weight, rtol=0, atol=error * 2, err_msg=name)


def test_llama_3s_rope_scaling_is_told_from_its_factors(tmp_path):
    scaling = RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192
    )
    config = small_config("Llama", head_dim=64, rope_theta=500000.0, rope_scaling=scaling)
    turns = 8192 / (2 * np.pi * 500000.0 ** (np.arange(0, 64, 2) / 64))
    kept = np.clip((turns - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    factors = 1 / ((1 - kept) / 8.0 + kept)  # as llama.cpp stores them
    params = make_params(config)
    extra = {"rope_freqs.weight": factors.astype(np.float32)}
    file = write_gguf(tmp_path / "m.gguf", config, params, extra=extra)
    read = GgufFile(file).config.rope_scaling
    assert read is not None
    assert read.factor == pytest.approx(8.0, rel=1e-4)
    wrong = {"rope_freqs.weight": np.linspace(1, 8, 32, dtype=np.float32)}
    file = write_gguf(tmp_path / "w.gguf", config, params, extra=wrong)
    with pytest.raises(ValueError, match="other factors than those of llama 3"):
        GgufFile(file)


REFUSED = {
    "architecture": ({"kind": "gpt2"}, "holds the architecture 'gpt2'; supported: llama"),
    "experts": ({"fields": {"KIND.expert_count": 8}}, "is a mixture of experts"),
    "partial rotation": ({"fields": {"KIND.rope.dimension_count": 4}}, "rope.dimension_count is 4"),
    "layers": (
        {"fields": {"KIND.block_count": 4_000_000_000}},
        "000 layers and [0-9]+ tensors: get",
    ),
    "no heads": (
        {"fields": {"KIND.attention.head_count": 0}},
        "fields that no file of its kind has",
    ),
    "lacking": ({"without": ("blk.1.ffn_up.weight",)}, "lacks model.layers.1.mlp.up_proj.weight"),
    "unknown": ({"extra": {"more.weight": np.ones(2, np.float32)}}, "has, unknown to it, more.wei"),
    "shape": ({"fields": {"KIND.feed_forward_length": 96}}, "has shape .*the fields make it"),
    "not finite": (
        {"extra": {"model.norm.weight": np.full(32, np.nan)}},
        "output_norm.weight has weights that are NaN",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_converted_is_refused_and_leaves_nothing(case, tmp_path):
    options, words = REFUSED[case]
    config = small_config("Qwen2")
    file = write_gguf(tmp_path / "m.gguf", config, make_params(config), **options)
    with pytest.raises(ValueError, match=words) as error:
        convert(file, tmp_path / "folder")
    assert str(file) in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_a_torn_file_a_missing_one_and_a_full_folder_are_refused(tmp_path):
    config = small_config("Llama")
    file = write_gguf(tmp_path / "m.gguf", config, make_params(config))
    with pytest.raises(ValueError, match="is not an empty folder"):
        convert(file, tmp_path)
    with pytest.raises(ValueError, match=r"other\.gguf is missing"):
        convert(tmp_path / "other.gguf", tmp_path / "folder")
    whole = file.read_bytes()
    for share in (0.0, 0.01, 0.3, 0.9):
        file.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ValueError, match="is no whole GGUF file"):
            convert(file, tmp_path / "folder")


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
def test_the_tokenizer_cuts_as_its_kind_says(pre, tmp_path):
    config = small_config("Qwen2")
    file = write_gguf(tmp_path / "m.gguf", config, make_params(config), pre=pre)
    tokenizer = TextTokenizer.load(convert(file, tmp_path / "folder"))
    assert tokenizer.vocab_size == len(TOKENS)
    assert tokenizer.eos_id == TOKENS.index("<|im_end|>")

    def pieces(text: str) -> list[str]:
        return [TOKENS[index] for index in tokenizer.encode(text)]

    joined = pre in ("gpt-2", "llama-bpe")
    assert pieces("12") == (["12"] if joined else ["1", "2"])
    assert pieces("hello") == ["hello"]
    assert pieces("<|im_end|>a<tool>") == ["<|im_end|>", "a", "<tool>"]
    composed = pre == "qwen2"
    assert len(tokenizer.encode("e\u0301")) == (2 if composed else 3)
    text = "hello  world\n\n'S 1,234 \t日本 <|im_start|>"
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.render_prompt("hi") == prompt
    whole = tokenizer.encode("a", add_special_tokens=True)
    assert [TOKENS[i] for i in whole] == ([SPECIAL[0], "a"] if pre == "llama-bpe" else ["a"])
