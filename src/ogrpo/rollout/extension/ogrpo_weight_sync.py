r"""The server's side of a weight push: a vLLM worker extension, without JAX or ogrpo.

    PYTHONPATH=<this folder> vllm serve MODEL \
        --worker-extension-cls ogrpo_weight_sync.WeightSync \
        --weight-transfer-config '{"backend": "ogrpo"}'

A push names a release: a folder, or a URL to pull from, with the sha256 of its manifest. Everything
is read and checked (digests, names, shapes, dtypes, finiteness) before the live model is touched;
what is refused leaves it as it was.
"""

from pathlib import Path
from typing import Any

import ogrpo_releases as releases  # pyright: ignore[reportMissingImports]
from safetensors import safe_open


class WeightSync:
    """Mixed into the worker by vLLM, which calls `ogrpo_describe` for `/collective_rpc`."""

    vllm_config: Any
    model_runner: Any

    def __new__(cls, *_args: Any, **_named: Any) -> "WeightSync":
        """Makes the worker known to the back end, which vLLM makes later and does not tell."""
        import ogrpo_transfer  # pyright: ignore[reportMissingImports]

        worker = super().__new__(cls)
        ogrpo_transfer.ReleaseEngine.worker = worker
        return worker

    def ogrpo_describe(self) -> dict[str, Any]:
        """Returns what the trainer has to know of this worker, version and last update included."""
        config = self.vllm_config
        model, transfer = config.model_config, config.weight_transfer_config
        scheduler = config.scheduler_config
        return {
            **state_of(self).status(),
            "protocol": releases.PROTOCOL,
            "transfer": None if transfer is None else str(transfer.backend),
            "dtype": _dtype(self),
            "vocab_size": int(model.get_vocab_size()),
            "quantization": None if model.quantization is None else str(model.quantization),
            "chunked_prefill": bool(getattr(scheduler, "enable_chunked_prefill", True)),
        }


def state_of(worker: Any) -> Any:
    """Returns what a worker remembers between two updates."""
    if not hasattr(worker, "ogrpo_state"):
        worker.ogrpo_state = releases.WorkerState()
        # Asked once: a reload by vLLM itself changes the path that is recorded as the model's.
        worker.ogrpo_first_folder = worker.vllm_config.model_config.model
    return worker.ogrpo_state


def update(worker: Any, **ticket: Any) -> None:
    """Carries out one update of a worker; see `ogrpo_releases.update`."""
    served = releases.Served(
        shapes_fn=lambda: _expected(worker),
        dtype=_dtype(worker),
        install_fn=lambda release: _install(worker, release.file),
    )
    releases.update(state_of(worker), served, **ticket)


def _dtype(worker: Any) -> str:
    return str(worker.vllm_config.model_config.dtype).removeprefix("torch.")


def _expected(worker: Any) -> dict[str, list[int]]:
    """Returns names and shapes of the checkpoint that the server was started from."""
    folder = Path(worker.ogrpo_first_folder)
    if not folder.is_dir():
        from huggingface_hub import (  # pyright: ignore[reportMissingImports]
            snapshot_download,
        )

        folder = Path(snapshot_download(str(folder), local_files_only=True))
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        text = f"{folder} has no safetensors to compare names and shapes with"
        raise releases.Refusal("refused", text)
    shapes = {name: x["shape"] for file in files for name, x in releases.header(file)[0].items()}
    if getattr(worker.vllm_config.model_config.hf_text_config, "tie_word_embeddings", False):
        # Some checkpoints carry the head's copy, which the trainer does not have.
        shapes.pop("lm_head.weight", None)
    return shapes


def _install(worker: Any, file: Path) -> None:
    """Loads a checked file into the live model and refreshes what was derived from it."""
    from vllm.config import set_current_vllm_config  # pyright: ignore[reportMissingImports]

    runner = worker.model_runner
    with safe_open(str(file), "pt") as opened, set_current_vllm_config(worker.vllm_config):
        names = opened.keys()
        # vLLM's own way, which undoes and redoes what it made of the weights after loading.
        runner.reload_weights(weights_iterator=((name, opened.get_tensor(name)) for name in names))
    # A CPU build packs the embedding once more as a head, which a reload forgets when tied.
    for module in runner.get_model().modules():
        method: Any = getattr(module, "quant_method", None)
        packed = hasattr(module, "cpu_linear") and "Embedding" in type(method).__name__
        if packed and module.weight.numel():
            method.process_weights_after_loading(module)
