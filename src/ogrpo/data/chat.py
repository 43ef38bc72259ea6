"""Chat templates, rendered as `transformers` renders them, in a sandbox.

A template comes with a downloaded model, so it is a program by a stranger: the sandbox gives it no
way to files, imports or attributes of Python objects.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, meta

from ogrpo.data.chat_sandbox import Sandbox

Messages = Sequence[Mapping[str, Any]]
PLAIN_PROMPT = "{question}"
PLAIN_CHAT = """\
{% for message in messages %}
{{ message.role }}:
{{ message.content }}

{% endfor %}
{% if add_generation_prompt %}
assistant:
{% endif %}
"""
"""A chat template for tokenizers that are made here, which have none of their own."""


_FAILURES = (
    *(TemplateError, SyntaxError, TypeError, ValueError, LookupError, AttributeError),
    *(ArithmeticError, RecursionError, MemoryError),
)
"""What compiling or rendering a stranger's program can end with."""


def render_chat(template: str, messages: Messages, variables: Mapping[str, Any]) -> str:
    """Render messages up to where the assistant begins to speak.

    Raises:
        ValueError: the template is not valid, refuses these messages, or would take too much time
            or memory; with its own words.
    """
    given = {"tools": None, "documents": None, **variables}
    try:
        compiled = _compiled(template)
        _SANDBOX.begin()
        text = compiled.render(messages=messages, add_generation_prompt=True, **given)
        text.encode("utf-8")  # a template can write half of a surrogate pair
        return text
    except _FAILURES as error:
        raise ValueError(f"chat template: {_told(error)}") from error


def check_template(template: str, where: str) -> None:
    """Check that a template can be compiled.

    Raises:
        ValueError: it cannot; names `where` it is from.
    """
    try:
        _compiled(template)
    except _FAILURES as error:
        raise ValueError(f"{where} is no chat template: {_told(error)}") from error


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"


def to_messages(prompt: str | Messages, prompt_template: str) -> Messages:
    """Make a question the user's turn; messages stay as they are.

    Raises:
        ValueError: messages, and a template for questions.
    """
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt_template.replace("{question}", prompt)}]
    if prompt_template != PLAIN_PROMPT:
        raise ValueError(
            f"prompt_template {prompt_template!r} is for prompts of text, and this one is of "
            "messages: leave it out, and write the instruction into the messages."
        )
    return prompt


def with_system(messages: Messages, system: str | None) -> Messages:
    """Open the messages with a system turn, if one is asked for.

    Raises:
        ValueError: they have one of their own.
    """
    if system is None:
        return messages
    if messages[0]["role"] in ("system", "developer"):
        raise ValueError(
            f"system prompt {system[:60]!r}: the messages begin with a {messages[0]['role']} turn "
            "of their own; leave one of the two out."
        )
    return [{"role": "system", "content": system}, *messages]


def refuse_chat(
    prompt: str | Messages, system: str | None, variables: Mapping[str, Any] | None
) -> None:
    """Refuse what only a chat template can render.

    Raises:
        ValueError: the prompt is messages, or a system turn or a variable is asked for.
    """
    if not isinstance(prompt, str):
        raise ValueError(
            "the prompt is chat messages and this tokenizer has no chat template: use a model with "
            "one, put one beside it (chat_template.jinja), or make the prompt a text."
        )
    asked = {"system prompt": system, "chat variables": variables}
    for name, value in asked.items():
        if value:
            raise ValueError(
                f"{name} {value!r:.60}: it needs a chat template and this tokenizer has none; put "
                "the instruction into the prompt."
            )


def check_asked(template: str, messages: Messages, rendered: str) -> None:
    """Check that what the user said last stands in the rendered text, white space aside.

    Raises:
        ValueError: it does not; the message names the template by its beginning.
    """
    said = [message["content"] for message in messages if message["role"] == "user"]
    if said and _squeeze(said[-1]) not in _squeeze(rendered):
        raise ValueError(
            f"the chat template that begins {_squeeze(template)[:60]!r} drops the question: "
            f"{said[-1][:60]!r} is not in what it renders, {rendered[:120]!r}. Use a template that "
            "writes the user's message (chat_template.jinja in the model's folder)."
        )


def template_variables(template: str) -> set[str]:
    """Return the names that a template reads and does not set itself.

    >>> sorted(template_variables("{% for m in messages %}{{ m.content }}{{ mood }}{% endfor %}"))
    ['messages', 'mood']
    """
    return meta.find_undeclared_variables(_SANDBOX.parse(template))


def _squeeze(text: str) -> str:
    return " ".join(text.split())


_SANDBOX = Sandbox()


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    return _SANDBOX.from_string(template)
