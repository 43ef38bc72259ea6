"""GGUF files as we convert them, against transformers reading the same file (`gguf_file=`)."""

import random
import unicodedata

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.models.convert import convert
from ogrpo.policy import load_pretrained
from ogrpo.policy.log_probs import flat_logits
from tests.models.tiny_gguf import small_config, write_gguf
from tests.parity.families import torch_logits
from tests.policy.tiny import FAMILIES, make_params

ODD = (
    *("hello", " world", "12", "3.14", "1,000", " ", "  ", "\n", "\n\n", "\t", "\r\n", "é", "日本"),
    *("'s", "'LL", "<|im_end|>", "<tool>", "$", "½", "٣", "a1b2", "🙂", "—", "x", " 7", "٤٥"),
    *("e\u0301", "\u200b", "\ufeff", "Ⅷ", "²", "<|im_start|>", "ſ", "İ", "_", "don't", "\x00"),
)


WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
"""The sizes of a row of Q4_K are multiples of 256."""


@pytest.mark.parametrize("quantisation", ["F32", "Q8_0", "Q4_1", "Q4_K"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_agree(family, quantisation, tmp_path):
    sizes = WIDE if quantisation == "Q4_K" else {}
    # transformers takes Qwen3's heads to have 128 dimensions, whatever the file says.
    config = small_config(family, **sizes | ({"head_dim": 128} if family == "Qwen3" else {}))
    params = make_params(config)
    file = write_gguf(tmp_path / "m.gguf", config, params, quantisation=quantisation)
    options = {"gguf_file": file.name, "dtype": torch.float32}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, **options)
    read, weights = load_pretrained(convert(file, tmp_path / "folder"), jnp.float32)
    rows = np.random.default_rng(0).integers(0, 256, (2, 12)).astype(np.int32)
    mask = np.ones_like(rows, bool)
    ours = flat_logits(weights, read, jnp.asarray(rows), jnp.asarray(mask))
    expected = torch_logits(theirs.eval(), rows, mask).numpy()
    assert np.std(expected) > 0.5
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=1e-5, atol=1e-4)


MEANT = {
    "qwen2": lambda text: unicodedata.normalize("NFC", text),
    "smollm": lambda text: "".join(each for each in text if not each.isnumeric()),
}
"""What is left of a text that transformers' own conversion cuts as the model's tokenizer does: it has
no NFC for Qwen's, and splits no digits for SmolLM's."""


@pytest.mark.parametrize(
    ("family", "pre"),
    [("Llama", "gpt-2"), ("Llama", "smollm"), ("Qwen2", "qwen2"), ("Llama", "llama-bpe")],
)
def test_tokens_of_a_thousand_odd_texts_agree(family, pre, tmp_path):
    config = small_config(family)
    file = write_gguf(tmp_path / "m.gguf", config, make_params(config), pre=pre)
    folder = convert(file, tmp_path / "folder")
    ours, theirs = TextTokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    converted = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    rng = random.Random(0)
    for _ in range(1000):
        text = "".join(rng.choices(ODD, k=rng.randint(1, 12)))
        for special in (False, True):
            ids = ours.encode(text, add_special_tokens=special).tolist()
            assert theirs.encode(text, add_special_tokens=special) == ids, text
        meant = MEANT.get(pre, str)(text)
        cut = ours.backend.pre_tokenizer.pre_tokenize_str(meant)
        assert converted.backend_tokenizer.pre_tokenizer.pre_tokenize_str(meant) == cut
        assert converted.encode(meant, add_special_tokens=False) == ours.encode(meant).tolist()
        decoded = ours.decode(ids, skip_special_tokens=False)
        assert theirs.decode(ids, clean_up_tokenization_spaces=False) == decoded
    messages = [{"role": "user", "content": "hello <b>"}]
    for each in (theirs, converted):
        assert (each.eos_token_id, each.pad_token_id) == (ours.eos_id, ours.pad_id)
        rendered = each.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert ours.render_prompt("hello <b>") == rendered
