"""The decoder on both sides of the bridge: its tensors by name, its scores, an engine over URLs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.policy import DecoderConfig, Params, load_pretrained, sample
from ogrpo.policy.decoder import unstack
from ogrpo.policy.log_probs import flat_log_probs
from ogrpo.policy.lora import merge
from ogrpo.policy.params import int8_weights
from ogrpo.policy.pretrained import from_tensors, tensor_slots, to_tensors
from ogrpo.protocol import IntArray
from ogrpo.rollout.embedded import EmbeddedEngine, pad
from ogrpo.rollout.endpoint import ServedModel
from ogrpo.rollout.options import InFlight, ServerOptions
from ogrpo.rollout.vllm import Expected, VllmEngine
from ogrpo.rollout.vllm.engine import SequenceScoreFn

# The sampler's layouts for one CPU take time to compile. They are used where a stacked array has at
# least so many parameters, or a completion so many tokens. Then: how often a batch is halved as its
# completions end, and how many slots of the cache a step reads at least.
_LARGE, _LONG, _HALVINGS, _LEAST_READ = 1 << 22, 32, 2, 64


def connect_policy(
    options: ServerOptions,
    config: DecoderConfig,
    *,
    eos_id: int,
    max_length: int,
    in_flight: InFlight = "wait",
) -> VllmEngine:
    """Returns an engine that samples the decoder's policy from vLLM servers.

    Args:
      options: the servers, and how they are asked.
      config: the decoder's shape; the servers were started from a folder of the same.
      eos_id: the token that ends a completion.
      max_length: longest prompt plus completion.
      in_flight: what a push does to requests in flight.
    """
    return VllmEngine(
        options,
        expected=Expected(vocab_size=config.vocab_size, eos_id=eos_id, max_length=max_length),
        tensors_fn=partial(named_tensors, config),
        score_fn=make_score_fn(config),
        in_flight=in_flight,
    )


def named_tensors(config: DecoderConfig, params: Params) -> dict[str, np.ndarray]:
    """Returns parameters as host arrays by their Hugging Face names; layers are views of a stack.

    Adapters are merged into the matrices beside them, one at a time.
    """
    return to_tensors(config, merge(params, keep_fn=np.asarray))


def make_score_fn(config: DecoderConfig) -> SequenceScoreFn:
    """Returns the trainer's function for log softmax(z) of tokens 1.. of each sequence."""

    def score_fn(params: Params, sequences: Sequence[IntArray]) -> list[np.ndarray]:
        ids, mask = pad(sequences, max(map(len, sequences)))
        scores = np.asarray(_score(params, jnp.asarray(ids), jnp.asarray(mask), config=config))
        return [row[: len(each) - 1] for row, each in zip(scores, sequences, strict=True)]

    return score_fn


@partial(jax.jit, static_argnames="config")
def _score(params: Params, ids: jax.Array, mask: jax.Array, *, config: DecoderConfig) -> jax.Array:
    return flat_log_probs(params, config, ids, mask, 1.0)


def embedded_engine(
    config: DecoderConfig,
    *,
    eos_id: int,
    batch_size: int,
    prompt_length: int | None,
    place_fn: Callable[[Any], Any] = jnp.asarray,
    fetch_fn: Callable[[Any], Any] = lambda drawn: drawn,
    quantize: Literal["none", "int8"] = "none",
) -> EmbeddedEngine:
    """Returns the trainer's own sampler behind the engine interface.

    `place_fn` puts prompts on the devices that draw for them, those of the parameters; `fetch_fn`
    gets what was drawn from them, where other processes have a part of it. On a single CPU large
    layers are unstacked, batches of long completions shrink as they finish, and their steps read
    no more of the cache than twice what is written. With `quantize` int8 it draws with weights
    rounded by `ogrpo.policy.params.int8_weights`, so that its policy is not the trainer's.
    """

    def sample_fn(params: Params, ids: np.ndarray, mask: np.ndarray, seed: int, **how: Any) -> Any:
        arrays = place_fn(ids), place_fn(mask)
        layout = sampler_layout(how["max_tokens"], one_cpu=_on_one_cpu(params))
        key = jax.random.key(seed)
        return fetch_fn(sample(params, config, *arrays, key, eos_id=eos_id, **layout, **how))

    return EmbeddedEngine(
        sample_fn,
        batch_size=batch_size,
        prompt_length=prompt_length,
        vocab_size=config.vocab_size,
        max_length=config.max_positions,
        prepare_fn=partial(_prepare, quantize=quantize),
    )


def sampler_layout(max_tokens: int, *, one_cpu: bool) -> dict[str, int]:
    """Returns `halvings` and `least_read` of the embedded sampler, empty for their defaults."""
    long = one_cpu and max_tokens >= _LONG
    return {"halvings": _HALVINGS, "least_read": _LEAST_READ} if long else {}


def _prepare(params: Params, *, quantize: Literal["none", "int8"]) -> Params:
    params = merge(params)
    params = int8_weights(params) if quantize == "int8" else params
    sizes = [leaf.size for leaf in jax.tree.leaves(params["layers"])]
    return unstack(params) if max(sizes) >= _LARGE and _on_one_cpu(params) else params


def _on_one_cpu(params: Params) -> bool:
    devices = {device for leaf in jax.tree.leaves(params) for device in leaf.devices()}
    return len(devices) == 1 and devices.pop().platform == "cpu"


def embedded_model(
    folder: str,
    *,
    dtype: str,
    eos_id: int,
    batch_size: int,
    max_length: int | None = None,
) -> tuple[ServedModel, Params]:
    """Returns a model folder as what `ogrpo.rollout.endpoint` serves, and its parameters.

    Args:
      folder: config.json and safetensors.
      eos_id: the token that ends a completion.
      batch_size: prompts that are computed at once.
      max_length: longest prompt plus completion, no more than the model's positions, which it is
        by default.
    """
    config, params = load_pretrained(folder, dtype)
    model = ServedModel(
        engine=embedded_engine(config, eos_id=eos_id, batch_size=batch_size, prompt_length=None),
        params_fn=partial(from_tensors, config, dtype),
        score_fn=make_score_fn(config),
        shapes={name: list(slot.shape) for name, slot in tensor_slots(config).items()},
        dtype=dtype,
        vocab_size=config.vocab_size,
        eos_id=eos_id,
        max_model_len=max_length or config.max_positions,
    )
    return model, params
