"""Tasks: prompts, gold answers and rewards, from files of one's own or official ones; no JAX."""

from ogrpo.tasks.example import Example, Message, Prompt
from ogrpo.tasks.task import EvaluationProtocol, Task

__all__ = ["EvaluationProtocol", "Example", "Message", "Prompt", "Task"]
