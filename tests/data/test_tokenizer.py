import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogrpo.data.tokenizer import EOS, PAD, TEMPLATE, UNKNOWN, TextTokenizer, train_bpe, word_level
from ogrpo.tasks.arithmetic import vocabulary

WORDS = vocabulary()
WORD_LEVEL = word_level(WORDS)
CORPUS = ["Tom has 12 apples .", "Ann buys 7 pears and 12 plums .", "#### 1,234"] * 3
BPE = train_bpe(CORPUS, 300)
BOTH = pytest.mark.parametrize("tokenizer", [WORD_LEVEL, BPE], ids=["word-level", "bpe"])
VOCAB, CONFIG = "tokenizer.json", "tokenizer_config.json"
CHAT = "{% for m in messages %}[{{ m.role }}] {{ m.content }} {{ eos_token }}{% endfor %}[reply]"


@given(st.lists(st.sampled_from(WORDS)))
def test_words_come_back(words):
    text = " ".join(words)
    ids = WORD_LEVEL.encode(text)
    assert ids.dtype == np.int32
    assert len(ids) == len(words)
    assert WORD_LEVEL.decode(ids) == text


@given(st.text())
def test_any_text_comes_back_from_bytes(text):
    if PAD not in text and EOS not in text:
        assert BPE.decode(BPE.encode(text)) == text


def test_bpe_learns_and_stays_within_its_size():
    assert BPE.vocab_size <= 300
    assert len(BPE.encode(CORPUS[0])) < len(CORPUS[0]) / 2
    assert BPE.encode(CORPUS[1]).tolist() == train_bpe(CORPUS, 300).encode(CORPUS[1]).tolist()
    with pytest.raises(ValueError, match="vocab_size is 257; give at least 258"):
        train_bpe(CORPUS, 257)


@BOTH
def test_the_end_of_sequence_is_added_when_asked_for_and_not_shown(tokenizer):
    ids = tokenizer.encode("#### 12", add_eos=True)
    assert ids[-1] == tokenizer.eos_id
    assert tokenizer.eos_id not in ids[:-1]
    assert tokenizer.pad_id != tokenizer.eos_id
    assert tokenizer.decode([*ids, tokenizer.pad_id]) == "#### 12"
    assert EOS in tokenizer.decode(ids, skip_special_tokens=False)


def test_a_word_without_a_token_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"'zebra' is not in the vocabulary of \d+ tokens"):
        WORD_LEVEL.encode("Tom has 7 zebra .")
    with pytest.raises(ValueError, match="'<unk>' is not in the vocabulary"):
        WORD_LEVEL.encode(f"Tom {UNKNOWN}")
    ending = TextTokenizer(BPE.backend, BPE.config | {"unk_token": EOS})  # as SmolLM2's
    assert ending.encode(f"Tom{EOS}").tolist() == BPE.encode("Tom", add_eos=True).tolist()


@BOTH
def test_a_saved_tokenizer_is_read_back(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "model")
    read = TextTokenizer.load(tmp_path / "model")
    text = "Tom has 12 plums ."
    assert read.encode(text).tolist() == tokenizer.encode(text).tolist()
    assert (read.eos_id, read.pad_id) == (tokenizer.eos_id, tokenizer.pad_id)
    assert read.config == tokenizer.config
    assert read.chat_template is None
    read.backend.enable_truncation(2)
    read.backend.enable_padding(length=65)
    read.save(tmp_path / "cut")
    again = TextTokenizer.load(tmp_path / "cut")
    assert again.encode(text).tolist() == tokenizer.encode(text).tolist()
    train_bpe(CORPUS, 300, chat_template=CHAT).save(tmp_path)
    assert TextTokenizer.load(tmp_path).chat_template == CHAT


def folder_with(tmp_path, **config):
    BPE.save(tmp_path)
    (tmp_path / CONFIG).write_text(json.dumps(BPE.config | config))
    return tmp_path


def test_a_chat_template_may_stand_in_the_config(tmp_path):
    assert TextTokenizer.load(folder_with(tmp_path, chat_template=CHAT)).chat_template == CHAT
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHAT}]
    assert TextTokenizer.load(folder_with(tmp_path, chat_template=named)).chat_template == CHAT
    with pytest.raises(ValueError, match=r"\['tool_use'\], none named 'default'"):
        TextTokenizer.load(folder_with(tmp_path, chat_template=named[:1]))


@pytest.mark.parametrize("eos", [None, "<|nowhere|>"])
def test_an_end_of_sequence_that_is_no_token_is_an_error(tmp_path, eos):
    with pytest.raises(ValueError, match=r"eos_token is .*, which is no token of this tokenizer"):
        TextTokenizer.load(folder_with(tmp_path, eos_token=eos))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (VOCAB, None, "is missing; a tokenizer folder holds"),
        (VOCAB, lambda text: text[: len(text) // 2], "is not JSON"),
        (VOCAB, lambda _: "{}", "is no tokenizer"),
        (VOCAB, lambda text: text.replace('"BPE"', '"Bpe"'), "no tokenizer that can"),
        (VOCAB, lambda text: '{"model": ' + "[" * 9999, "nested deeper than 100"),
        (CONFIG, lambda _: "[]", "must hold a JSON object, got list"),
        (
            CONFIG,
            lambda _: '{"added_tokens_decoder": {"9": {"content": "<+>"}}}',
            "adds '<.>', which",
        ),
        (CONFIG, lambda _: '{"eos_token": 7}', "'eos_token' is 7: give a text"),
        (CONFIG, lambda _: '{"chat_template": [7]}', r"'chat_template' is \[7\]"),
        (CONFIG, lambda _: '{"chat_template": "{% if"}', "is no chat template: unexpected"),
        (TEMPLATE, lambda _: b"\xff", "is not UTF-8"),
        (TEMPLATE, lambda _: b"{% for %}", "is no chat template"),
    ],
)
def test_a_broken_file_is_told_by_its_name(tmp_path, file, change, message):
    BPE.save(tmp_path)
    path = tmp_path / file
    if change is None:
        path.unlink()
    else:
        content = change(path.read_text() if path.exists() else "")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as caught:
        TextTokenizer.load(tmp_path)
    assert str(path) in str(caught.value)


def test_each_digit_is_a_token_of_its_own():
    corpus = ["there are 1234 and 1234 = 1234", "1234 + 1234 is 2468"] * 20
    split = train_bpe(corpus, 300)
    for text in ("1234", " 1234", "x=1234;", "-1234.5"):
        pieces = [split.decode([n]) for n in split.encode(text)]
        digits = [p for p in pieces if any(c.isdigit() for c in p)]
        assert digits == [c for c in text if c.isdigit()]
