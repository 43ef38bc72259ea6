"""GGUF files as we convert them, against transformers reading the same file (`gguf_file=`)."""

import random

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


@pytest.mark.parametrize("quantisation", ["F32", "Q8_0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_agree(family, quantisation, tmp_path):
    # transformers takes Qwen3's heads to have 128 dimensions, whatever the file says.
    config = small_config(family, **({"head_dim": 128} if family == "Qwen3" else {}))
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


@pytest.mark.parametrize(
    ("family", "pre"),
    [("Llama", "gpt-2"), ("Llama", "smollm"), ("Qwen2", "qwen2"), ("Llama", "llama-bpe")],
)
def test_the_folders_tokenizer_is_read_alike_on_a_thousand_odd_texts(family, pre, tmp_path):
    config = small_config(family)
    file = write_gguf(tmp_path / "m.gguf", config, make_params(config), pre=pre)
    folder = convert(file, tmp_path / "folder")
    ours, theirs = TextTokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    rng = random.Random(0)
    for _ in range(1000):
        text = "".join(rng.choices(ODD, k=rng.randint(1, 12)))
        for special in (False, True):
            ids = ours.encode(text, add_special_tokens=special).tolist()
            assert theirs.encode(text, add_special_tokens=special) == ids, text
        decoded = ours.decode(ids, skip_special_tokens=False)
        assert theirs.decode(ids, clean_up_tokenization_spaces=False) == decoded
    assert (theirs.eos_token_id, theirs.pad_token_id) == (ours.eos_id, ours.pad_id)
    messages = [{"role": "user", "content": "hello <b>"}]
    rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.render_prompt("hello <b>") == rendered
