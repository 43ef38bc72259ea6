"""Adapters of ogrpo's own server: loaded by vLLM's routes, chosen by the model asked for."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ogrpo.rollout.extension import ogrpo_adapters
from ogrpo.rollout.http_server import BadRequest
from ogrpo.rollout.weights.tensors import Tensors, read
from ogrpo.system.files import read_json

Json = dict[str, Any]
AdaptFn = Callable[[Any, Tensors, float], Any]


class ServedAdapters:
    """Adapters by the model name that requests ask for.

    Args:
        adapt_fn: `(params, A and B by PEFT's names, scale)` -> parameters with these adapters.
        taken: the name of the model beneath them.
    """

    def __init__(self, adapt_fn: AdaptFn, taken: str) -> None:
        self._adapt_fn, self._taken = adapt_fn, taken
        self._held: dict[str, tuple[Tensors, float]] = {}
        self._adapted: dict[str, tuple[Any, Any]] = {}

    def __contains__(self, name: object) -> bool:
        """Returns whether requests may ask for it."""
        return name in self._held

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._held)

    def params(self, name: str, base: Any) -> Any:
        """The parameters of a name, over those of the model beneath it."""
        if name not in self._adapted or self._adapted[name][0] is not base:
            self._adapted[name] = base, self._adapt_fn(base, *self._held[name])
        return self._adapted[name][1]

    def load(self, body: Json) -> Json:
        """`/v1/load_lora_adapter`."""
        name, place = _text(body, "lora_name"), _text(body, "lora_path")
        if name == self._taken:
            raise BadRequest(f"The lora adapter '{name:.80}' conflicts with a served base model.")
        if name in self._held:
            raise BadRequest(f"The lora adapter '{name:.80}' has already been loaded.")
        self._held[name] = _opened(Path(place))
        return {"message": f"LoRA adapter '{name}' added"}

    def unload(self, body: Json) -> Json:
        """`/v1/unload_lora_adapter`."""
        name = _text(body, "lora_name")
        if name not in self._held:
            raise BadRequest(f"The lora adapter '{name:.80}' cannot be found.", 404)
        del self._held[name]
        self._adapted.pop(name, None)
        return {"message": f"LoRA adapter '{name}' removed"}


def _text(body: Json, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value or "\0" in value:
        raise BadRequest(f"{name} is {value!r:.60}: give a text")
    return value


def _opened(folder: Path) -> tuple[Tensors, float]:
    try:
        config = read_json(folder / ogrpo_adapters.CONFIG)
        tensors = read(folder / ogrpo_adapters.TENSORS)
        return tensors, config["lora_alpha"] / config["r"]
    except OSError as error:
        raise BadRequest(f"No adapter found for {folder}", 404) from error
    except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise BadRequest(f"{folder} has no adapters that can be read: {error}", 500) from error
