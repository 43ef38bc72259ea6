"""How a run of several processes is started: the part of `config` that differs between them."""

from dataclasses import dataclass

from ogrpo.config.update import require


@dataclass(frozen=True)
class Processes:
    """The processes of one run, each started with the same other options (docs/processes.md)."""

    auto: bool = False
    """Find the others as JAX finds them: under Slurm, Open MPI and Kubernetes."""
    coordinator: str | None = None
    """HOST:PORT of process 0, where the others look for it."""
    count: int | None = None
    """How many there are."""
    id: int | None = None
    """Which of them this is, from 0."""

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("coordinator", "count", "id")}
        missing = [f"--processes.{name}" for name, value in given.items() if value is None]
        require(
            len(missing) in (0, 3),
            f"processes are found by their coordinator, count and id: also give"
            f" {' and '.join(missing)}",
        )
        require(
            not self.auto or len(missing) == 3,
            "processes.auto finds the others by itself: leave it out, or give no"
            " --processes.coordinator, --processes.count and --processes.id",
        )
        if self.count is None or self.id is None:
            return
        require(self.count >= 1, f"processes.count is {self.count}: give at least 1")
        require(
            0 <= self.id < self.count,
            f"processes.id is {self.id}: the {self.count} processes are numbered from 0",
        )
        port = str(self.coordinator).rpartition(":")[2]
        require(port.isdigit(), f"processes.coordinator is {self.coordinator}: give HOST:PORT")

    @property
    def wanted(self) -> bool:
        """Whether this is to be one process of several."""
        return self.auto or self.coordinator is not None
