"""When groups leave the replay buffer."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BufferLimits:
    """When groups are evicted; None means no limit.

    Attributes:
        groups: groups held; the oldest go first.
        bytes: bytes held, see `ReplayBuffer.nbytes`; the oldest go first.
        staleness: policy versions between the newest heard of and the oldest in the group.
        uses: draws of a group, the last one included.
    """

    groups: int | None = None
    bytes: int | None = None
    staleness: int | None = None
    uses: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("groups", 1), ("bytes", 1), ("staleness", 0), ("uses", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"limit on {name} is {value}; give at least {least}, or None.")
