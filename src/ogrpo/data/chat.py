"""Chat templates, rendered as `transformers` renders them, in a process that can be killed.

A template comes with a downloaded model, so it is a program by a stranger: a sandbox gives it no
way to files, imports or Python's objects (`ogrpo.data.chat_sandbox`), and its process ends when it
takes more than `SECONDS` of CPU time or `MEMORY_GIB` of memory.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ogrpo.system.worker import Reply, WorkerProcess, pickle_by_reference

SECONDS = 5.0
"""CPU time of one rendering; templates take less than a millisecond."""
MEMORY_GIB = 1.0
"""Address space of the process that renders."""
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


class _Renderer:
    """Starts the process that renders at the first template, and again when one ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None

    def ask(self, function: str, arguments: Mapping[str, Any]) -> Any:
        """Return what a function of `chat_sandbox` returns.

        Raises:
            ValueError: the template fails, or takes too much time or memory.
        """
        with self._lock:
            reply = self._call(function, arguments)
            if reply.outside:  # somebody else killed or stopped the process
                reply = self._call(function, arguments)
        if reply.kind == "memory":
            raise ValueError(f"it takes more than {MEMORY_GIB:g} GiB of memory")
        if reply.kind == "timeout" or (reply.kind == "died" and "SIGPROF" in reply.message):
            raise ValueError(f"it takes more than {SECONDS:g} s of CPU time")
        if reply.kind is not None:
            raise ValueError(reply.message)
        if "error" in reply.result:
            raise ValueError(reply.result["error"])
        return reply.result["result"]

    def _call(self, function: str, arguments: Mapping[str, Any]) -> Reply:
        if self._worker is None or not self._worker.alive:
            functions = {n: pickle_by_reference("chat_sandbox", n) for n in ("render", "names")}
            files = {"chat_sandbox": str(Path(__file__).with_name("chat_sandbox.py"))}
            self._worker = WorkerProcess(functions, memory_gib=MEMORY_GIB, files=files)
            self._worker.load(120)
        asked = {**arguments, "seconds": SECONDS}
        reply = self._worker.call(function, asked, seconds=10 * SECONDS + 10)
        if reply.kind == "memory":
            self._worker.kill()
        return reply


_RENDERER = _Renderer()


def render_chat(template: str, messages: Messages, variables: Mapping[str, Any]) -> str:
    """Return messages up to where the assistant begins to speak.

    Raises:
        ValueError: the template is not valid, refuses these messages, or takes too much time or
            memory; with its own words.
    """
    arguments = {"tools": None, "documents": None, **variables}
    arguments |= {"messages": messages, "add_generation_prompt": True}
    try:
        return _RENDERER.ask("render", {"template": template, "arguments": arguments})
    except ValueError as error:
        raise ValueError(f"chat template: {error}") from error


def template_variables(template: str, where: str = "the chat template") -> set[str]:
    """Return the names that a template reads and does not set itself.

    >>> sorted(template_variables("{% for m in messages %}{{ m.content }}{{ mood }}{% endfor %}"))
    ['messages', 'mood']

    Raises:
        ValueError: it cannot be compiled; names `where` it is from.
    """
    try:
        return set(_RENDERER.ask("names", {"template": template}))
    except ValueError as error:
        raise ValueError(f"{where} is no chat template: {error}") from error


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


def _squeeze(text: str) -> str:
    return " ".join(text.split())
