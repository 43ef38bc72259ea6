"""The CPUs of a worker."""

import os


def on_cpus(threads: int) -> list[str]:
    """Returns the words before a command that bind it to the first so many of our CPUs."""
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    if len(cpus) < threads:
        raise ValueError(f"--threads is {threads}, but there are {len(cpus)} CPUs")
    return ["taskset", "--cpu-list", ",".join(map(str, cpus))]
