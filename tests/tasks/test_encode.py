import numpy as np
import pytest

from ogrpo.data.tokenizer import train_bpe
from ogrpo.tasks import Example
from ogrpo.tasks.encode import encode_example

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
TEXT = Example("What is 12 + 7 ?", {"answer": "19"}, "own.jsonl:3")
CHAT = Example(({"role": "user", "content": "Weather in Rome ?"},), {}, "own.jsonl:4")


def made(**options):
    return train_bpe([TEXT.prompt], 300, **options)


def test_the_system_prompt_and_the_template_s_variables_are_reachable():
    tokenizer = made(chat_template=CHATML)
    user = "<|im_start|>user\nWhat is 12 + 7 ?<eos>\n<|im_start|>assistant\n"
    for options, expected in (
        ({}, user),
        ({"system": "Think."}, f"<|im_start|>system\nThink.<eos>\n{user}"),
        ({"chat_variables": {"enable_thinking": False}}, f"{user}<think>\n\n</think>\n\n"),
    ):
        ids = encode_example(TEXT, tokenizer, **options)
        assert tokenizer.decode(ids, skip_special_tokens=False) == expected
        assert (ids == tokenizer.eos_id).sum() == expected.count("<eos>")
        assert ids.dtype == np.int32


@pytest.mark.parametrize(
    ("options", "example", "how", "message"),
    [
        ({}, CHAT, {}, r"own\.jsonl:4: the prompt is chat messages and this tokenizer has no chat template: use a model"),
        ({}, TEXT, {"system": "Be brief."}, r"own\.jsonl:3: system prompt 'Be brief\.': it needs a chat template"),
        ({"chat_template": "{% if messages %}Hello.{% endif %}"}, TEXT, {}, r"own\.jsonl:3: the chat template that begins '\{% if messages.*drops the question: 'What is 12.*Use a template"),
    ],
)  # fmt: skip
def test_what_cannot_be_rendered_is_an_error_that_names_the_line(options, example, how, message):
    with pytest.raises(ValueError, match=message):
        encode_example(example, made(**options), **how)
