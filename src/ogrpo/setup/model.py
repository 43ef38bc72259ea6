"""The policy of a run: loaded, random, or warm-started here from a careless teacher."""

import dataclasses
from pathlib import Path

import jax
from rich.console import Console

from ogrpo.config.train import Model
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.kernels import attention
from ogrpo.kernels.log_probs import choose
from ogrpo.learner.finite import require_finite
from ogrpo.policy import DecoderConfig, Params, init_params
from ogrpo.policy.config import SHAPES, tiny
from ogrpo.policy.lora import merge
from ogrpo.policy.pretrained import check_room, load_pretrained, save_pretrained
from ogrpo.report.progress import weights_bar
from ogrpo.setup.cache import weights_folder
from ogrpo.setup.devices import DTYPES
from ogrpo.setup.imitation import warm_started
from ogrpo.setup.prepare import Prepared, check_vocabulary
from ogrpo.system.values import require


def tiny_decoder(tokenizer: TextTokenizer) -> DecoderConfig:
    """Returns the tiny shape with a tokenizer's vocabulary."""
    return tiny(tokenizer.padded_vocab_size(16))


def with_folder(model: Model, console: Console) -> Model:
    """Returns the model with the folder of its weights, fetched or converted if need be."""
    if model.path is None:
        return model
    with weights_bar(console) as show:
        return dataclasses.replace(model, path=weights_folder(model.path, show))


def make_model(prepared: Prepared, console: Console) -> tuple[DecoderConfig, Params]:
    """Returns the decoder's shape and its first parameters.

    It shows which kernels compute attention and log-probs.

    Raises:
      ValueError: a model of random weights does not fit, or there is nothing to imitate.
    """
    config = prepared.config
    tokenizer, demos = prepared.tokenizer, prepared.demos
    dtype, random, params = DTYPES[config.model.dtype], config.model.random, None
    if config.model.path is not None:
        decoder, params = load_pretrained(weights_folder(config.model.path), dtype)
        require(
            demos is not None or not config.warm_start.solutions,
            f"task {prepared.task.name!r} has no worked solutions to imitate: leave out"
            " --warm-start.solutions",
        )
    elif random != "none":
        decoder = {**SHAPES, "tiny": tiny_decoder(tokenizer)}[random]
        check_vocabulary(tokenizer, decoder, f"--model.random {random}")
        check_room(decoder, dtype, f"--model.random {random}")
        params = init_params(decoder, jax.random.key(config.seed), dtype)
    else:
        decoder = prepared.decoder
        require(
            demos is not None,
            f"task {prepared.task.name!r} needs a model that can read it: give --model.path a"
            " Hugging Face folder, a column of worked solutions (--data.solution-column) that a"
            " small decoder imitates first, or --model.random tiny to prove the path with random"
            " weights",
        )
    if params is None or config.warm_start.solutions:
        assert demos is not None
        arguments = (config, decoder, tokenizer, demos, dtype, console)
        params = warm_started(*arguments, start=params)
    kernels = config.kernels
    console.print(f"attention: {attention.describe(kernels.attention, jax.default_backend())}")
    console.print(f"log-probs: {choose(kernels.log_probs, decoder.vocab_size)}")
    return decoder, params


def save_model(
    folder: Path, decoder: DecoderConfig, params: Params, tokenizer: TextTokenizer
) -> None:
    """Writes a Hugging Face folder that servers and later runs can start from, adapters merged.

    Raises:
      NotFiniteError: a weight is NaN or infinite; the folder stays as it was.
    """
    require_finite(params, f"the weights are not saved, and {folder} stays as it was")
    tokenizer.save(folder)
    save_pretrained(folder, decoder, merge(params), extra_fields=tokenizer.ends)
