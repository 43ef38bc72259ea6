"""Our worker extension on a CPU as on a GPU, for the stand-in of libnccl (tests/rollout/vllm).

vLLM's own communicator joins and receives; what a CPU lacks for it is a stream.
"""

import ogrpo_nccl
from ogrpo_weight_sync import WeightSync
from vllm.utils.torch_utils import _StreamPlaceholder

_StreamPlaceholder.cuda_stream = None
ogrpo_nccl.DEVICE = "cpu"
ogrpo_nccl.releases.PIECE, ogrpo_nccl.releases.PULL_SECONDS = 1 << 14, 5.0
__all__ = ["WeightSync"]
