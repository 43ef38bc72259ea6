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
PLAIN_CHAT = """\
{% for message in messages %}
{{ message.role }}:
{{ message.content }}

{% endfor %}
{% if add_generation_prompt %}
assistant:
{% endif %}
"""
"""A chat template for tokenizers that are made here, which come without one."""


def render_chat(template: str, messages: Messages, variables: Mapping[str, Any]) -> str:
    """Returns messages up to where the assistant begins to speak.

    Raises:
      ValueError: the template is not valid, refuses these messages, or takes too much time or
        memory; with the template's message.
    """
    arguments = {"tools": None, "documents": None, **variables}
    arguments |= {"messages": messages, "add_generation_prompt": True}
    try:
        return _RENDERER.call("render", {"template": template, "arguments": arguments})
    except ValueError as error:
        raise ValueError(f"chat template: {error}") from error


def template_variables(template: str, where: str = "the chat template") -> set[str]:
    """Returns the names that a template reads and does not set itself.

    >>> sorted(template_variables("{% for m in messages %}{{ m.content }}{{ mood }}{% endfor %}"))
    ['messages', 'mood']

    Raises:
      ValueError: it cannot be compiled; names `where` it is from.
    """
    try:
        return set(_RENDERER.call("names", {"template": template}))
    except ValueError as error:
        raise ValueError(f"{where} is no chat template: {error}") from error


class _Renderer:
    """Starts the process that renders at the first template, and again when one ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None

    def call(self, function: str, arguments: Mapping[str, Any]) -> Any:
        """Returns the result of a function of `chat_sandbox`.

        Raises:
          ValueError: the template fails, or takes too much time or memory.
        """
        with self._lock:
            reply = self._reply(function, arguments)
            if reply.outside:  # somebody else killed or stopped the process
                reply = self._reply(function, arguments)
        if reply.kind == "memory":
            raise ValueError(f"it takes more than {MEMORY_GIB:g} GiB of memory")
        if reply.kind == "timeout" or (reply.kind == "died" and "SIGPROF" in reply.message):
            raise ValueError(f"it takes more than {SECONDS:g} s of CPU time")
        if reply.kind is not None:
            raise ValueError(reply.message)
        if "error" in reply.result:
            raise ValueError(reply.result["error"])
        return reply.result["result"]

    def _reply(self, function: str, arguments: Mapping[str, Any]) -> Reply:
        if self._worker is None or not self._worker.alive:
            functions = {n: pickle_by_reference("chat_sandbox", n) for n in ("render", "names")}
            files = {"chat_sandbox": str(Path(__file__).with_name("chat_sandbox.py"))}
            self._worker = WorkerProcess(functions, memory_gib=MEMORY_GIB, files=files)
            self._worker.load(120)
        bounded = {**arguments, "seconds": SECONDS}
        reply = self._worker.call(function, bounded, seconds=10 * SECONDS + 10)
        if reply.kind == "memory":
            self._worker.kill()
        return reply


_RENDERER = _Renderer()
