"""A worker's side of a broadcast, with vLLM's own communicator; it has not yet run on a GPU.

vLLM's calls block, and a trainer may die in the middle of one: each is made in a thread, and given
up after a time, so that the worker goes on serving what it had.
"""

import base64
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import ogrpo_releases as releases  # pyright: ignore[reportMissingImports]

T = TypeVar("T")
DEVICE = "cuda"


def version(worker: Any) -> int | str:
    """NCCL's version as a number, or why this worker takes no broadcasts."""
    device = str(getattr(worker, "device", "unknown"))
    return _version() if device.startswith(DEVICE) else f"its workers are on {device}, not on CUDA"


@cache
def _version() -> int | str:
    try:
        from vllm.distributed.device_communicators import (  # pyright: ignore[reportMissingImports]
            pynccl_wrapper,
        )
        from vllm.distributed.weight_transfer.nccl_common import (  # pyright: ignore[reportMissingImports]
            uid_init_process_group,  # noqa: F401
        )

        return pynccl_wrapper.NCCLLibrary().ncclGetRawVersion()
    except ImportError:
        return "its vLLM knows no unique ids, as 0.32 does"
    except (OSError, ValueError) as error:
        return f"it has no NCCL: {error}"


class Receiver:
    """One communicator: this worker's part in it, and its GPU's buffer."""

    def __init__(self, worker: Any, unique_id: str, ranks: int) -> None:
        import torch  # pyright: ignore[reportMissingImports]
        from vllm.distributed.weight_transfer.nccl_common import (  # pyright: ignore[reportMissingImports]
            uid_init_process_group,
        )
        from vllm.utils.torch_utils import current_stream  # pyright: ignore[reportMissingImports]

        config, device = worker.vllm_config.parallel_config, worker.device
        rank = 1 + config.data_parallel_index * config.world_size + config.rank
        self._torch, self._device, self._stream = torch, device, current_stream()
        self._piece = torch.empty(releases.PIECE, dtype=torch.uint8, device=device)
        raw = base64.b64decode(unique_id, validate=True)
        self._group = self._within(lambda: uid_init_process_group(raw, rank, ranks, device))

    def read(self, size: int) -> memoryview:
        """The next piece, on the host."""
        piece = self._piece[:size]

        def receive() -> None:
            self._group.broadcast(piece, src=0, stream=self._stream)
            self._stream.synchronize()

        self._within(receive)
        return piece.cpu().numpy().data

    def close(self) -> None:
        """Leaves the communicator, whatever the others do."""
        self._group.destroy()

    def _within(self, act: Callable[[], T]) -> T:
        done: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                with self._torch.accelerator.device_index(self._device.index):
                    done.append(act())
            except Exception as error:  # whatever it is, the worker's own thread is told
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(releases.PULL_SECONDS)
        if errors:
            raise errors[0]
        if not done:
            raise TimeoutError(f"nothing came for {releases.PULL_SECONDS:g} s")
        return done[0]
