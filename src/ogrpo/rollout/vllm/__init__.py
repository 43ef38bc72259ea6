"""The bridge to vLLM and vLLM-Ascend servers.

with connect(["http://127.0.0.1:8000"], expected=..., tensors_fn=..., score_fn=...) as engine:
    engine.publish(params, 0)
    groups = engine.generate(prompts, sampling, seed=0)
"""

from ogrpo.rollout.vllm.capabilities import Capabilities, Expected
from ogrpo.rollout.vllm.engine import VllmEngine
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


connect = VllmEngine
"""Connects to servers; the engine is closed by `close` or at the end of a `with` block."""
