import pytest

from ogrpo.data.chat import render_chat

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 < 2 ?"}]
CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def test_a_template_of_the_chatml_kind():
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n1 < 2 ?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render_chat(CHATML, MESSAGES, {}) == expected
    thoughtless = render_chat(CHATML, MESSAGES, {"enable_thinking": False})
    assert thoughtless == expected + "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("  {% if true %}\nyes\n  {% endif %}\n", "yes\n"),  # trim_blocks and lstrip_blocks
        ("{{ bos_token }}{{ messages[1].content }}", "<s>1 < 2 ?"),
        ("{{ messages[1] | tojson }}", '{"role": "user", "content": "1 < 2 ?"}'),
        ("{% for m in messages %}{% break %}{% endfor %}.", "."),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "Be brief.!"),
        ("{{ strftime_now('%%') }}", "%"),
        ("{{ tools is none }}{{ documents is none }}", "TrueTrue"),
    ],
)
def test_what_templates_rely_on(template, expected):
    assert render_chat(template, MESSAGES, {"bos_token": "<s>"}) == expected


def test_a_template_that_refuses_is_an_error_in_its_own_words():
    template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(ValueError, match="chat template: System role not supported"):
        render_chat(template, MESSAGES, {})


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/hostname' %}",
    ],
)
def test_a_broken_or_a_hostile_template_is_an_error(template):
    with pytest.raises(ValueError, match="chat template: "):
        render_chat(template, MESSAGES, {})
