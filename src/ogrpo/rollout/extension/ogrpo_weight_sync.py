r"""The server's side of a weight push: a vLLM worker extension in one file, without JAX or ogrpo.

    PYTHONPATH=<this folder> vllm serve MODEL \
        --worker-extension-cls ogrpo_weight_sync.WeightSync

A push names a release: a folder, or a URL to pull from, with the sha256 of its manifest. Everything
is read and checked (digests, names, shapes, dtypes, finiteness) before the live model is touched;
what is refused leaves it as it was. Results are plain dicts, and a refusal is one too: an
exception inside a worker may end the engine.
"""

import hashlib
import http.client
import inspect
import json
import os
import shutil
import tempfile
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from safetensors import SafetensorError, safe_open

PROTOCOL = 1
MANIFEST, MODEL, DELTA = "manifest.json", "model.safetensors", "delta.safetensors"
CHUNK = 1 << 22
PULL_SECONDS = 60.0
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Refusal(Exception):
    """A push that must not reach the live model; `code` tells the trainer what it can do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Sync:
    """What a worker remembers between two pushes."""

    def __init__(self) -> None:
        self.instance = uuid.uuid4().hex
        self.version = -1
        self.sha256 = ""
        self.file: Path | None = None
        self.scratch = Path(tempfile.mkdtemp(prefix="ogrpo-sync-"))


class WeightSync:
    """Mixed into the worker by vLLM; its methods are called through `/collective_rpc`."""

    vllm_config: Any
    model_runner: Any

    def ogrpo_describe(self) -> dict[str, Any]:
        """What the trainer has to know of this worker, version and instance included."""
        state, config = _state(self), self.vllm_config
        model, scheduler, cache = config.model_config, config.scheduler_config, config.cache_config
        return {
            "protocol": PROTOCOL,
            "instance": state.instance,
            "version": state.version,
            "sha256": state.sha256,
            "dtype": str(model.dtype).removeprefix("torch."),
            "logprobs_mode": str(getattr(model, "logprobs_mode", "raw_logprobs")),
            "max_model_len": int(model.max_model_len),
            "vocab_size": int(model.get_vocab_size()),
            "tied": bool(getattr(model.hf_config, "tie_word_embeddings", False)),
            "quantization": None if model.quantization is None else str(model.quantization),
            "enforce_eager": bool(model.enforce_eager),
            "chunked_prefill": bool(getattr(scheduler, "enable_chunked_prefill", True)),
            "prefix_caching": bool(cache.enable_prefix_caching),
            "device": str(getattr(self, "device", "unknown")),
            "model": str(model.model),
        }

    def ogrpo_load(
        self,
        version: int,
        manifest_sha256: str,
        path: str | None = None,
        url: str | None = None,
        token: str | None = None,
    ) -> dict[str, Any]:
        """Checks a release and loads it; `{"ok": True}` or `{"ok": False, "code", "error"}`."""
        state = _state(self)
        try:
            release = _Folder(Path(path)) if path is not None else _Remote(str(url), token)
            manifest = _read_manifest(release, manifest_sha256)
            file, how, moved = _obtain(release, manifest, state)
            _check(file, manifest, _expected(self), self.vllm_config.model_config.dtype)
        except Refusal as refusal:
            return {"ok": False, "code": refusal.code, "error": str(refusal), **_where(state)}
        try:
            _install(self, file)
        except Exception as error:  # whatever vLLM raised, the model may be half loaded
            return _undo(self, state, error)
        _adopt(state, file, int(version), manifest["sha256"])
        return {"ok": True, "how": how, "bytes": moved, **_where(state)}


def _state(worker: Any) -> _Sync:
    if not hasattr(worker, "ogrpo_sync_state"):
        worker.ogrpo_sync_state = _Sync()
    return worker.ogrpo_sync_state


def _where(state: _Sync) -> dict[str, Any]:
    return {"version": state.version, "sha256": state.sha256, "instance": state.instance}


class _Folder:
    """A release in a folder that this worker can read."""

    def __init__(self, folder: Path) -> None:
        root = os.environ.get("OGRPO_WEIGHTS_ROOT")
        if root and not folder.resolve().is_relative_to(Path(root).resolve()):
            raise Refusal("refused", f"{folder} is outside OGRPO_WEIGHTS_ROOT={root}")
        self.folder = folder

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise Refusal("unreachable", f"{self.folder / name}: {error.strerror}") from error

    def fetch(self, name: str, state: _Sync) -> Path:  # noqa: ARG002
        """Where the file can be read: it stays where it is."""
        return self.folder / name


class _Remote:
    """A release behind a URL, pulled with a token."""

    def __init__(self, url: str, token: str | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise Refusal("refused", f"{url} is no http(s) URL")
        self.url = url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def _open(self, name: str) -> Any:
        request = urllib.request.Request(f"{self.url}/{name}", headers=self.headers)
        try:
            # No proxy: weights come from the trainer's own address.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            return opener.open(request, timeout=PULL_SECONDS)
        except (urllib.error.URLError, OSError) as error:
            raise Refusal("unreachable", f"{self.url}/{name}: {error}") from error

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        with self._open(name) as reply:
            return reply.read()

    def fetch(self, name: str, state: _Sync) -> Path:
        """Pulls a file into this worker's scratch folder."""
        target = state.scratch / f"{uuid.uuid4().hex}.{name}"
        try:
            with self._open(name) as reply, target.open("wb") as out:
                shutil.copyfileobj(reply, out, CHUNK)
        except (http.client.HTTPException, OSError) as error:
            target.unlink(missing_ok=True)
            raise Refusal("unreachable", f"{self.url}/{name}: {error}") from error
        return target


def _read_manifest(release: _Folder | _Remote, sha256: str) -> dict[str, Any]:
    raw = release.read(MANIFEST)
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise Refusal("digest", f"{MANIFEST} is not the one that was announced ({sha256[:12]})")
    return json.loads(raw)


def _obtain(
    release: _Folder | _Remote, manifest: dict[str, Any], state: _Sync
) -> tuple[Path, str, int]:
    """The release's whole model file, how it came and the bytes that moved.

    Where the release says what changed since the version in use, and the file would have to be
    pulled, only that is; whatever goes wrong with it, the whole file is fetched instead.
    """
    if isinstance(release, _Folder):
        return _verified(release.fetch(MODEL, state), manifest["sha256"], state), "folder", 0
    delta = manifest["delta"]
    if delta is not None and delta["base_sha256"] == state.sha256 and _has(state):
        try:
            return _patched(release, manifest, state), "delta", delta["bytes"]
        except (Refusal, SafetensorError, OSError):
            pass
    file = _verified(release.fetch(MODEL, state), manifest["sha256"], state)
    return file, "full", manifest["bytes"]


def _has(state: _Sync) -> bool:
    return state.file is not None and state.file.is_file()


def _patched(release: _Remote, manifest: dict[str, Any], state: _Sync) -> Path:
    """The model file made from the one in use and the release's changed elements."""
    changes = _verified(release.fetch(DELTA, state), manifest["delta"]["sha256"], state)
    target = state.scratch / f"{uuid.uuid4().hex}.{MODEL}"
    shutil.copyfile(str(state.file), target)
    _apply(changes, target)
    _discard(changes, state)
    return _verified(target, manifest["sha256"], state)


def _apply(changes: Path, target: Path) -> None:
    """Writes each tensor's changed elements, bit patterns at flat positions, into `target`."""
    header, start = _header(target)
    whole = np.memmap(target, np.uint8, "r+")
    with safe_open(str(changes), "np") as opened:
        for name in {key.rsplit("@", 1)[0] for key in opened.keys()}:  # noqa: SIM118
            index, value = opened.get_tensor(f"{name}@index"), opened.get_tensor(f"{name}@value")
            begin, end = header[name]["data_offsets"]
            view = whole[start + begin : start + end].view(BITS[value.dtype.itemsize])
            view[index] = value.view(BITS[value.dtype.itemsize])
    whole.flush()


def _verified(file: Path, sha256: str, state: _Sync) -> Path:
    try:
        digest = _digest(file)
    except OSError as error:
        raise Refusal("unreachable", f"{file}: {error.strerror}") from error
    if digest != sha256:
        _discard(file, state)
        raise Refusal("digest", f"{file.name} has sha256 {digest[:12]}, not {sha256[:12]}")
    return file


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _discard(file: Path, state: _Sync) -> None:
    if file.is_relative_to(state.scratch):
        file.unlink(missing_ok=True)


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and where its data begin."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    header.pop("__metadata__", None)
    return header, 8 + size


def _expected(worker: Any) -> dict[str, list[int]]:
    """Names and shapes of the checkpoint that the server was started from."""
    folder = Path(worker.vllm_config.model_config.model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(str(folder), local_files_only=True))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise Refusal("refused", f"{folder} has no safetensors to compare names and shapes with")
    return {name: x["shape"] for file in files for name, x in _header(file)[0].items()}


def _check(
    file: Path, manifest: dict[str, Any], expected: dict[str, list[int]], dtype: torch.dtype
) -> None:
    try:
        with safe_open(str(file), "pt") as opened:
            _check_names(set(opened.keys()), set(manifest["tensors"]), set(expected))
            for name in opened.keys():  # noqa: SIM118
                _check_tensor(name, opened.get_tensor(name), expected[name], dtype)
    except (SafetensorError, OSError) as error:
        raise Refusal("garbage", f"{file.name} is no readable safetensors file: {error}") from error


def _check_names(found: set[str], announced: set[str], expected: set[str]) -> None:
    # A checkpoint with tied embeddings may or may not carry the head's copy.
    optional = {"lm_head.weight"} if "lm_head.weight" not in found & expected else set()
    for label, names in (
        ("lacks", (announced - found) | (expected - found - optional)),
        ("has unknown", (found - announced) | (found - expected)),
    ):
        if names:
            some = ", ".join(sorted(names)[:3])
            raise Refusal("garbage", f"the release {label} {len(names)} tensors: {some}")


def _check_tensor(name: str, tensor: torch.Tensor, shape: list[int], dtype: torch.dtype) -> None:
    if list(tensor.shape) != list(shape):
        raise Refusal("garbage", f"{name} has shape {list(tensor.shape)}, the model {list(shape)}")
    if tensor.dtype != dtype:
        raise Refusal("garbage", f"{name} is {tensor.dtype}, the model is served as {dtype}")
    if not bool(torch.isfinite(tensor).all()):
        raise Refusal("garbage", f"{name} has NaN or infinite elements")


def _install(worker: Any, file: Path) -> None:
    """Loads a checked file into the live model and refreshes what was derived from it."""
    model = worker.model_runner.model
    with safe_open(str(file), "pt") as opened:
        names = opened.keys()
        tensors = ((name, opened.get_tensor(name)) for name in names)
        reload = getattr(worker.model_runner, "reload_weights", None)
        if reload is not None and "weights_iterator" in inspect.signature(reload).parameters:
            from vllm.config import (  # pyright: ignore[reportMissingImports]
                set_current_vllm_config,
            )

            with set_current_vllm_config(worker.vllm_config):
                reload(weights_iterator=tensors)
        else:
            model.load_weights(tensors)
    _refresh_head(model)


def _refresh_head(model: Any) -> None:
    """A CPU build packs the embedding once more as a head, which a reload forgets when tied."""
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        stale = hasattr(module, "cpu_linear") and type(method).__name__.startswith("Unquantized")
        if stale and module.weight.numel() and "Embedding" in type(method).__name__:
            method.process_weights_after_loading(module)


def _adopt(state: _Sync, file: Path, version: int, sha256: str) -> None:
    if state.file is not None and state.file != file:
        _discard(state.file, state)
    state.file, state.version, state.sha256 = file, version, sha256


def _undo(worker: Any, state: _Sync, error: Exception) -> dict[str, Any]:
    """Puts the last release back after vLLM failed halfway."""
    message = f"vLLM could not load it: {type(error).__name__}: {error}"
    code = "broken"
    if _has(state):
        try:
            _install(worker, Path(str(state.file)))
            code = "restored"
        except Exception as second:
            message += f"; nor the last release: {second}"
    return {"ok": False, "code": code, "error": message, **_where(state)}
