"""A chat template is a stranger's program: it reaches nothing, and it ends."""

import subprocess
import sys

import pytest

from ogrpo.data.chat import check_template, render_chat

MESSAGES = [{"role": "user", "content": "What is 1 + 1? " * 2000}]
GROW = "{% set ns = namespace(x='aaaa') %}{% for i in range(100) %}STEP{% endfor %}"
ENDLESS = [
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% for i in range(9) %}{{ f(n - 1) }}{% endfor %}{% endmacro %}{{ f(50) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(30) }}",
    "{{ 10 ** (10 ** 10) }}",
    "{{ 'a' * 10 ** 10 }}{{ [1] * 10 ** 10 }}",
    GROW.replace("STEP", "{% set ns.x = ns.x + ns.x %}"),
    GROW.replace("STEP", "{% set ns.x = ns.x ~ ns.x %}"),
    GROW.replace("STEP", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    GROW.replace("STEP", "{% set ns.x = [ns.x, ns.x] | join %}"),
    GROW.replace("STEP", "{% set ns.x = ''.join([ns.x, ns.x]) %}"),
    GROW.replace("STEP", "{% set ns.x = ns.x.replace('a', 'aa') %}"),
    GROW.replace("aaaa", "").replace("''", "7").replace("STEP", "{% set ns.x = ns.x * ns.x %}"),
    "{{ 'a' | center(10 ** 9) }}",
    "{{ 'a'.ljust(10 ** 9) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format('x', '999999999') }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (10 ** 9, 1) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "{{ [1] | batch(10 ** 9) | list }}",
    "{{ messages | tojson(indent=10 ** 9) }}",
    "{{ range(10) | map('center', 10 ** 9) | list }}",
    "{{ strftime_now('%999999999Y') }}",
]
RUN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from ogrpo.data.chat import render_chat
from tests.data.test_chat_sandbox import ENDLESS, MESSAGES
for template in ENDLESS:
    try:
        print("ended:", len(render_chat(template, MESSAGES, {})), template)
    except ValueError as error:
        print("refused:", error)
"""


def test_no_template_takes_much_time_or_memory():
    done = subprocess.run(
        [sys.executable, "-c", RUN], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    said = done.stdout.splitlines()
    assert len(said) == len(ENDLESS)
    assert [line for line in said if not line.startswith("refused: chat template: ")] == []


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ 'x'.__class__.__base__.y }}",
        "{{ self.__init__.__globals__ }}",
        "{{ '{0.__class__.__mro__[1]}'.format(messages).x.y }}",
    ],
)
def test_no_template_reaches_python(template):
    with pytest.raises(ValueError, match="chat template: "):
        render_chat(template, MESSAGES, {})
    assert "update" not in MESSAGES[0]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{% for i in 7 %}{% endfor %}", "TypeError"),
        ("{{ nothing.x }}", "'nothing' is undefined"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ '\ud800' }}", "surrogates not allowed"),
    ],
)
def test_what_a_template_ends_with_is_told(template, message):
    with pytest.raises(ValueError, match=f"chat template: .*{message}"):
        render_chat(template, MESSAGES, {})


@pytest.mark.parametrize(
    "template",
    [
        "{% if",
        "{% for a in 'x' %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% unknown %}",
    ],
)
def test_what_cannot_be_compiled_is_told_by_its_file(template):
    with pytest.raises(ValueError, match=r"^there/chat.jinja is no chat template: "):
        check_template(template, "there/chat.jinja")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages[0].content.split('?')[-1] ~ '!' }}", " !"),
        ("{{ messages[0].content.replace('What', 'That')[:4] }}", "That"),
        ("{{ '%s: %d' % ('a', 12) }}{{ '{:>5}'.format(1) }}", "a: 12    1"),
        ("{% set ns = namespace(n=0) %}{% for c in messages[0].content %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "30000"),
        ("{% macro turn(m) %}<{{ m.role }}>{% endmacro %}{{ turn(messages[0]) }}", "<user>"),
        ("{{ messages[0].content | length * 2 }}{{ [1, 2] | join('-') }}", "600001-2"),
    ],
)  # fmt: skip
def test_what_templates_do_they_may(template, expected):
    assert render_chat(template, MESSAGES, {}) == expected
