"""`transformers` is the yardstick: it reads what we save, and renders chats as we do."""

import pytest

from ogrpo.data.tokenizer import TextTokenizer, train_bpe, word_level
from ogrpo.tasks.arithmetic import generate, vocabulary

transformers = pytest.importorskip(
    "transformers", reason="the parity suite needs transformers: pip install 'ogrpo[parity]'"
)

CHAT = """\
{%- if messages[0].role == 'system' %}
    {{- '<sys>\\n' + messages[0].content + '\\n\\n' }}
{%- endif %}
  {% for message in messages %}
{{ loop.index }} {{ message.role }}: {{ message.content | trim }}{{ eos_token }}
{% generation %}{{ message | tojson }}{% endgeneration %}
    {% if loop.index > 5 %}{% break %}{% endif %}
  {% endfor %}
{% if add_generation_prompt %}assistant: {{ '' if enable_thinking else '<think>' }}{% endif %}
"""
CORPUS = [p.question for p in generate(200, 0)] + ["<b> & 日本 é\n\n\tx = {1} 's 're"]


def tokenizers() -> list[TextTokenizer]:
    chat = train_bpe(CORPUS, 300, chat_template=CHAT)
    return [word_level(vocabulary()), train_bpe(CORPUS, 300), chat]


@pytest.mark.parametrize("tokenizer", tokenizers(), ids=["words", "bpe", "chat"])
def test_auto_tokenizer_reads_what_we_save_and_agrees(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    other = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (other.eos_token_id, other.pad_token_id) == (tokenizer.eos_id, tokenizer.pad_id)
    assert len(other) == tokenizer.vocab_size
    texts = CORPUS[:-1] if tokenizer.chat_template is None else CORPUS
    for text in texts:
        ids = tokenizer.encode(text, add_eos=True)
        assert other.encode(text, add_special_tokens=False) == ids[:-1].tolist()
        assert other.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    "variables", [{}, {"enable_thinking": True}], ids=["chat", "thinking chat"]
)
@pytest.mark.parametrize("question", CORPUS[-2:])
def test_chats_are_rendered_alike(variables, question, tmp_path):
    tokenizer, system = tokenizers()[2], "Be brief.\n"
    tokenizer.save(tmp_path)
    other = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    options = {"add_generation_prompt": True, **variables}
    prompt = {"system": system, "chat_variables": variables}
    rendered = other.apply_chat_template(messages, tokenize=False, **options)
    assert tokenizer.render_prompt(question, **prompt) == rendered
    ids = other.apply_chat_template(messages, return_dict=False, **options)
    assert tokenizer.encode_prompt(question, **prompt).tolist() == ids
