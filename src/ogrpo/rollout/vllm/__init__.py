"""The bridge to vLLM and vLLM-Ascend servers.

with VllmEngine(options, expected=..., tensors_fn=..., score_fn=...) as engine:
    engine.publish(params, 0)
    groups = engine.generate(prompts, sampling, seed=0)
"""

from ogrpo.rollout.options import ServerOptions as ServerOptions
from ogrpo.rollout.vllm.capabilities import Capabilities as Capabilities
from ogrpo.rollout.vllm.capabilities import Expected as Expected
from ogrpo.rollout.vllm.engine import VllmEngine as VllmEngine
from ogrpo.rollout.vllm.errors import Broken as Broken
from ogrpo.rollout.vllm.errors import PublishRefused as PublishRefused
from ogrpo.rollout.vllm.errors import Refused as Refused
from ogrpo.rollout.vllm.errors import Rejected as Rejected
from ogrpo.rollout.vllm.errors import RolloutError as RolloutError
from ogrpo.rollout.vllm.errors import Unavailable as Unavailable
from ogrpo.rollout.vllm.errors import Unproven as Unproven
