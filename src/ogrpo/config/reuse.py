"""Limits of the signals that say how long the data at hand may be used."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReuseLimits:
    """Where each signal says that the data are used up."""

    kl: float = 0.02
    """KL(pi||mu) in nats a token."""
    ess: float = 0.1
    """Lost share of the effective sample size of the tokens."""
    tail: float = 1.0
    """Log of the 99 % quantile of the token ratios."""
    staleness: bool = True
    """Whether the criterion for stale samples counts too."""
    clip_step: float = 0.0
    """Log-step of the clip's width after each step; 0 leaves it as it is."""
    clip_range: float = 2.0
    """The clip may become so many times wider or narrower than it was given."""

    def __post_init__(self) -> None:
        for name, least in (("kl", 0), ("ess", 0), ("tail", 0), ("clip_range", 1)):
            value = getattr(self, name)
            if not value > least:
                dial = name.replace("_", "-")
                raise ValueError(f"reuse.limits.{dial} is {value}: give more than {least}")
        if self.clip_step < 0:
            raise ValueError(f"reuse.limits.clip-step is {self.clip_step}: give at least 0")
        if self.clip_step == 0 and self.clip_range != ReuseLimits.clip_range:
            raise ValueError(
                f"reuse.limits.clip-range is {self.clip_range}, but the clip keeps its width: give"
                " --reuse.limits.clip-step more than 0"
            )
