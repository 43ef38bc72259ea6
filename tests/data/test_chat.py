"""Chat templates: what models' templates rely on, and that a stranger's reaches nothing and ends."""

import pytest

from ogrpo.data import chat
from ogrpo.data.chat import render_chat, template_variables

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 < 2 ?"}]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("  {% if true %}\nyes\n  {% endif %}\n", "yes\n"),  # trim_blocks and lstrip_blocks
        ("{{ bos_token }}{{ messages[1].content }}", "<s>1 < 2 ?"),
        ("{{ messages[1] | tojson }}", '{"role": "user", "content": "1 < 2 ?"}'),
        ("{{ {'b': 'é', 'a': 1} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":1,"b":"é"}'),
        ("{{ {'b': 1} | tojson(indent=1) }}", '{\n "b": 1\n}'),
        ("{% for m in messages %}{% break %}{% endfor %}.", "."),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "Be brief.!"),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{{ tools is none }}{{ documents is none }}", "TrueTrue"),
        ("{{ messages[1].content.split('?')[-1] ~ '!' }}", "!"),
        ("{{ '%s: %d' % ('a', 12) }}{{ '{:>5}'.format(1) }}", "a: 12    1"),
        ("{% set ns = namespace(n=0) %}{% for c in 'abc' %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "3"),
        ("{% macro turn(m) %}<{{ m.role }}>{% endmacro %}{{ turn(messages[1]) }}", "<user>"),
    ],
)  # fmt: skip
def test_what_templates_rely_on(template, expected):
    assert render_chat(template, MESSAGES, {"bos_token": "<s>"}) == expected


LONG = [{"role": "user", "content": "What is 1 + 1? " * 2000}]
GROW = "{% set ns = namespace(x='aaaa') %}{% for i in range(100) %}STEP{% endfor %}"
SHARED = "".join(f"{{% set {b}=[{a}]*1000 %}}" for a, b in zip("1abcde", "abcdef", strict=True))
ENDLESS = [
    SHARED + "{{ f }}",  # few entries, each of which is the same list of lists
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}",
    "{{ 10 ** (10 ** 10) }}",  # already when it is compiled
    "{{ messages[0].content.replace('', 'x' * 99999).replace('', 'y' * 99999) }}",
    GROW.replace("STEP", "{% set ns.x = ns.x ~ ns.x %}"),
    GROW.replace("STEP", "{% set ns.x = ns.x.replace('a', 'aa') %}"),
    "{{ 'a' | center(10 ** 9) }}",
    "{{ '%*d' % (10 ** 9, 1) }}",
    "{{ range(99999) | map('center', 10 ** 6) | list }}",
    "{{ lipsum(99999) }}",
    "{{ messages | tojson(indent=10 ** 9) }}",
    "{{ 'a' * 2 ** 25 }}",
]


@pytest.mark.parametrize("template", ENDLESS)
def test_a_template_that_takes_too_much_time_or_memory_is_ended(template, monkeypatch):
    monkeypatch.setattr(chat, "SECONDS", 0.3)
    too_much = "chat template: it (takes more than 0.3 s of CPU time|takes more than 1 GiB|writes)"
    with pytest.raises(ValueError, match=too_much):
        render_chat(template, LONG, {})
    assert render_chat("{{ messages | length }}", LONG, {}) == "1"  # the next one is rendered


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
        "{{ cycler | tojson(default='{0.__init__.__globals__}'.format) }}",
    ],
)
def test_no_template_reaches_python(template):
    with pytest.raises(ValueError, match="chat template: "):
        render_chat(template, LONG, {})
    assert "update" not in LONG[0]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('System role not supported') }}", "System role not supported"),
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
        render_chat(template, LONG, {})


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
        template_variables(template, "there/chat.jinja")
