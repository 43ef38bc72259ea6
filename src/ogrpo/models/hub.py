"""Models of the Hugging Face hub, where it can be reached: downloaded, and pushed."""

import sys
from pathlib import Path

from huggingface_hub import HfApi, get_token, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

FILES = ("config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*.json", "*.jinja")
CARD = "README.md"


def from_hub(name: str, folder: Path | None) -> Path:
    """Downloads a model's folder, into the hub's own cache where none is named.

    Raises:
      ValueError: the hub cannot be reached, or has no such model.
    """
    try:
        if folder is not None:  # without a hub its client would return a folder that is there
            HfApi().model_info(name)
        made = snapshot_download(name, local_dir=folder, allow_patterns=[*FILES, CARD])
    except (HFValidationError, *_failures()) as error:
        raise ValueError(
            f"{name} cannot be had from the Hugging Face hub: {_reason(error)}. Known names"
            " (`ogrpo model --help`) and GGUF files need no hub"
        ) from error
    return Path(made)


def _failures() -> tuple[type[Exception], ...]:
    """Returns the errors of a hub that cannot be reached or refuses."""
    clients = (sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules)
    lost = (client.HTTPError for client in clients)  # which client, the hub's version decides
    return (HfHubHTTPError, OSError, RuntimeError, *lost)


def _reason(error: Exception) -> str:
    return f"{' '.join(str(error).split()) or type(error).__name__:.300}"


def check_push(name: str) -> None:
    """Checks what a push needs before anything is trained for it.

    Raises:
      ValueError: the name is no repository's, or there is no token.
    """
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"--push-to-hub {name}: give OWNER/NAME. {error}") from error
    if get_token() is None:
        raise ValueError(
            f"--push-to-hub {name} needs a token of the Hugging Face hub with the right to write:"
            " set HF_TOKEN, or run hf auth login"
        )


def to_hub(folder: Path, name: str, *, endpoint: str | None = None) -> str:
    """Pushes a model's folder to the hub, where the repository is made if it is not there.

    Args:
      folder: holds the weights, config, tokenizer and card.
      name: OWNER/NAME of the repository.
      endpoint: address of the hub; default: HF_ENDPOINT, or the public one.

    Returns:
      The address of the model's page.

    Raises:
      ValueError: the name is no repository's, or there is no token.
      OSError: the hub cannot be reached or refuses; the folder stays as it is.
    """
    check_push(name)
    api = HfApi(endpoint=endpoint)
    try:
        repository = api.create_repo(name, exist_ok=True)
        api.upload_folder(
            repo_id=repository.repo_id,
            folder_path=folder,
            allow_patterns=[*FILES, CARD],
            commit_message="Trained with ogrpo",
        )
    except _failures() as error:
        raise OSError(
            f"{folder} was not pushed to {name}: {_reason(error)}. The folder is whole; push it"
            f" with ogrpo model {folder} --push-to-hub {name}"
        ) from error
    return str(repository)
