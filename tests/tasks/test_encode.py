import numpy as np
import pytest

from ogrpo.data.chat import PLAIN_CHAT
from ogrpo.data.tokenizer import train_bpe
from ogrpo.tasks import Example, Task
from ogrpo.tasks.encode import encode_example, encode_examples

THINKING = """\
{%- for message in messages %}
    {{- '<|' + message.role + '|>' + message.content + '\\n' }}
{%- endfor %}
{{- '<|assistant|>' }}
{%- if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
"""
TEXT = Example("What is 12 + 7 ?", {"answer": "19"}, "own.jsonl:3")
MESSAGES = (
    {"role": "system", "content": "Use tools."},
    {"role": "user", "content": "Weather in Rome ?"},
    {"role": "assistant", "content": "[weather(city='Rome')]"},
    {"role": "tool", "content": "sunny"},
)
CHAT = Example(MESSAGES, {}, "own.jsonl:4")
CORPUS = ["What is 12 + 7 ?", "[weather(city='Rome')]"]


def made(**options):
    return train_bpe(CORPUS, 300, **options)


def shown(tokenizer, example, **options):
    ids = encode_example(example, tokenizer, **options)
    assert ids.dtype == np.int32
    return tokenizer.decode(ids, skip_special_tokens=False)


def test_texts_go_through_the_chat_template():
    assert shown(made(), TEXT) == TEXT.prompt
    expected = "<|user|>What is 12 + 7 ?\n<|assistant|>"
    assert shown(made(chat_template=THINKING), TEXT) == expected


def test_the_system_prompt_and_the_template_s_variables_are_reachable():
    tokenizer = made(chat_template=THINKING)
    other = shown(tokenizer, TEXT, system="Think.", chat_variables={"enable_thinking": False})
    assert other.startswith("<|system|>Think.\n<|user|>")
    assert other.endswith("<|assistant|><think></think>")
    assert shown(tokenizer, TEXT, chat_variables={"enable_thinking": True}).endswith(
        "<|assistant|>"
    )


@pytest.mark.parametrize(
    ("options", "example", "options_of_call", "message"),
    [
        ({}, CHAT, {}, r"own\.jsonl:4: the prompt is chat messages and this tokenizer has no chat template: use a model"),
        ({}, TEXT, {"system": "Be brief."}, r"own\.jsonl:3: system prompt 'Be brief\.': it needs a chat template"),
        ({"chat_template": "{% if messages %}Hello.{% endif %}"}, TEXT, {}, r"own\.jsonl:3: the chat template that begins '\{% if messages.*drops the question: 'What is 12.*Use a template"),
    ],
)  # fmt: skip
def test_what_cannot_be_rendered_is_an_error_that_names_the_line(
    options, example, options_of_call, message
):
    with pytest.raises(ValueError, match=message):
        encode_example(example, made(**options), **options_of_call)


def test_long_prompts_are_left_out_and_counted():
    examples = [TEXT, Example("What is 12 + 7 ? " * 9, {}, "own.jsonl:9"), TEXT]
    encoded = encode_examples(examples, made(), prompt_length=30)
    assert (len(encoded.prompts), encoded.examples, encoded.too_long) == (2, [TEXT, TEXT], 1)
    with pytest.raises(ValueError, match=r"none of 3 prompts fits into prompt_length = 2 tokens"):
        encode_examples(examples, made(), prompt_length=2)
    assert encode_examples([], made(), prompt_length=2) == ([], [], 0)


# A tokenizer made of a task's own text


def nothing(completions):
    return [0.0] * len(completions)


def tasks():
    texts = [
        {"prompt": f"Tom has {i} apples and buys {3 * i}.", "solution": f"{i} + {3 * i} = {4 * i} #### {4 * i}"}
        for i in range(60)
    ]  # fmt: skip
    chats = [
        {"messages": [*MESSAGES[:1], {"role": "user", "content": f"Weather in place {i} ?"}]}
        for i in range(60)
    ]
    return [Task.from_iterable(rows, rewards=[nothing]) for rows in (texts, chats)]


@pytest.mark.parametrize("task", tasks(), ids=["texts", "chats"])
def test_a_tokenizer_trained_on_a_task_encodes_what_is_held_out(task):
    options = {"chat_template": PLAIN_CHAT} if task.is_chat else {}
    tokenizer = train_bpe(task.texts(), 320, **options)
    again = train_bpe(task.texts(), 320, **options)
    for example in task.heldout:
        ids = encode_example(example, tokenizer)
        rendered = tokenizer.render_prompt(example.prompt)
        assert tokenizer.decode(ids) == rendered
        assert len(ids) < 0.75 * len(rendered)
        assert ids.tolist() == encode_example(example, again).tolist()
        for column in (c for c in example.columns.values() if c):
            assert tokenizer.decode(tokenizer.encode(column)) == column
    strange = "Zoé’s 3½ €\N{LINE SEPARATOR}日本 \U0001f600 \t\\frac{1}{2} 007"
    assert tokenizer.decode(tokenizer.encode(strange)) == strange
