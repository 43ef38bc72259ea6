"""A model of the Hugging Face hub, where it can be reached."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

FILES = ("config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*.json", "*.jinja")


def from_hub(name: str, folder: Path | None) -> Path:
    """Downloads a model's folder, into the hub's own cache where none is named.

    Raises:
      ValueError: the hub cannot be reached, or has no such model.
    """
    try:
        made = snapshot_download(name, local_dir=folder, allow_patterns=[*FILES])
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{name} cannot be had from the Hugging Face hub: {first:.300} Known names"
            " (`ogrpo model --help`) and GGUF files need no hub"
        ) from error
    return Path(made)
