"""Which CPUs a worker may use."""

import os


def on_cpus(threads: int) -> list[str]:
    """What goes before a command so that it runs on the first so many of this process's CPUs."""
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    if len(cpus) < threads:
        raise ValueError(f"--threads is {threads}, but there are {len(cpus)} CPUs")
    return ["taskset", "--cpu-list", ",".join(map(str, cpus))]
