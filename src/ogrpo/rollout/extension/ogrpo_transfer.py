"""vLLM's weight-transfer back end "ogrpo", from vLLM 0.23 on: checked releases.

The trainer calls vLLM's own routes: `start_weight_update`, `update_weights` to stage a release in
every worker, again to install it, and `finish_weight_update` with the version.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import ogrpo_weight_sync as weight_sync  # pyright: ignore[reportMissingImports]
from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngineFactory,
)

BACKEND = "ogrpo"


@dataclass
class ReleaseInit(WeightTransferInitInfo):
    """Agrees on nothing before an update."""


@dataclass(kw_only=True)
class ReleaseUpdate(WeightTransferUpdateInfo):
    """The arguments of `ogrpo_releases.update`."""

    version: int
    manifest_sha256: str
    install: bool = False
    path: str | None = None
    url: str | None = None
    token: str | None = field(default=None, repr=False)


class ReleaseEngine(WeightTransferEngine):
    """Brings releases to the worker of this process; an exception reaches the trainer as a 500."""

    init_info_cls = ReleaseInit
    update_info_cls = ReleaseUpdate
    supports_draft_weight_update = False
    worker: ClassVar[Any] = None
    """The one of this process: vLLM before 0.26 gives an engine no more than its model."""

    def init_transfer_engine(self, init_info: ReleaseInit) -> None:
        """Does nothing."""

    def start_weight_update(self) -> None:
        """Leaves the live model alone."""

    def receive_weights(self, update_info: ReleaseUpdate, **_: Any) -> None:
        """Stages a release, or installs the staged one."""
        weight_sync.update(type(self).worker, **vars(update_info))

    def finish_weight_update(self) -> None:
        """Does nothing: what was to be installed is."""

    def shutdown(self) -> None:
        """Does nothing: the files of a process go with it."""

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """Is not used: a release is not sent by vLLM's own trainers."""
        raise NotImplementedError("ogrpo's trainer writes releases; workers pull them")


WeightTransferEngineFactory.register_engine(BACKEND, ReleaseEngine)
