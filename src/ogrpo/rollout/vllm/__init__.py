"""The bridge to vLLM and vLLM-Ascend servers.

with connect(["http://127.0.0.1:8000"], expected=..., tensors_fn=..., score_fn=...) as engine:
    engine.publish(params, 0)
    groups = engine.generate(prompts, sampling, seed=0)
"""

from collections.abc import Sequence

from ogrpo.rollout.vllm.capabilities import Capabilities, Expected
from ogrpo.rollout.vllm.engine import AdaptersFn, ScoreFn, TensorsFn, VllmEngine
from ogrpo.rollout.vllm.errors import (
    Broken,
    PublishRefused,
    Refused,
    Rejected,
    RolloutError,
    Unavailable,
    Unproven,
)
from ogrpo.rollout.vllm.options import Options
from ogrpo.rollout.weights.nccl import Nccl

__all__ = [
    "Broken",
    "Capabilities",
    "Expected",
    "Nccl",
    "Options",
    "PublishRefused",
    "Refused",
    "Rejected",
    "RolloutError",
    "Unavailable",
    "Unproven",
    "VllmEngine",
    "connect",
]


def connect(
    urls: Sequence[str],
    *,
    expected: Expected,
    tensors_fn: TensorsFn,
    score_fn: ScoreFn,
    adapters_fn: AdaptersFn | None = None,
    options: Options | None = None,
    nccl: Nccl | None = None,
) -> VllmEngine:
    """An engine over one or more servers, each asked first what it can do.

    Args:
        urls: as in `http://host:8000`; several share the work.
        expected: the trainer's vocabulary, end token and lengths.
        tensors_fn: parameters -> tensors by their Hugging Face names; with `adapters_fn` those
            beneath the adapters, the same from push to push.
        score_fn: `(params, sequences)` -> log softmax(z) of tokens 1.. of each, the trainer's own,
            against which every push is proven.
        adapters_fn: parameters -> adapters, with push="adapters".
        options: see `Options`.
        nccl: the trainer's GPU, with transport="nccl".

    Raises:
        Refused: a server whose log-probs would be wrong, with the remedy.
        RolloutError: a server that does not answer.
    """
    if not urls:
        raise ValueError("no server URL was given; give at least one such as http://host:8000")
    options = options or Options()
    if (options.push == "adapters") != (adapters_fn is not None):
        raise ValueError(f"push is {options.push!r}: adapters_fn goes with 'adapters' alone")
    if (options.transport == "nccl") != (nccl is not None):
        raise ValueError(f"transport is {options.transport!r}: nccl goes with 'nccl' alone")
    return VllmEngine(
        urls,
        expected=expected,
        tensors_fn=tensors_fn,
        score_fn=score_fn,
        adapters_fn=adapters_fn,
        options=options,
        nccl=nccl,
    )
