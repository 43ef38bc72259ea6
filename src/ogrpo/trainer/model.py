"""The policy of a study: loaded, random, or warm-started here from a careless teacher."""

import dataclasses
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

from ogrpo import batch as batch_types
from ogrpo import learner, policy
from ogrpo.batch import Batch, PolicyOutput, take
from ogrpo.data import batching
from ogrpo.data.batching import PromptStream, pad_groups
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.kernels import attention
from ogrpo.kernels.log_probs import check_available, choose
from ogrpo.learner.finite import require_finite
from ogrpo.learner.pieces import in_order
from ogrpo.learner.state import adam, init_state
from ogrpo.learner.update import PolicyFn
from ogrpo.learner.warm_start import make_imitate, warm_start
from ogrpo.policy import (
    DecoderConfig,
    Params,
    completion_log_probs_and_entropy,
    init_params,
)
from ogrpo.policy.decoder import keep_nothing, keep_products
from ogrpo.policy.lora import merge
from ogrpo.policy.packing import packed_log_probs_and_entropy
from ogrpo.policy.pretrained import load_pretrained, save_pretrained
from ogrpo.policy.room import check_room
from ogrpo.policy.shapes import SHAPES, tiny
from ogrpo.report.progress import warm_start_bar
from ogrpo.tasks import arithmetic
from ogrpo.trainer import lessons as demonstrations
from ogrpo.trainer.cache import cache_path
from ogrpo.trainer.config import TrainConfig, WarmStart
from ogrpo.trainer.config_update import require
from ogrpo.trainer.lessons import Lessons
from ogrpo.trainer.prepare import Prepared, check_vocabulary

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
REMAT = {
    "none": jax.checkpoint_policies.everything_saveable,
    "products": keep_products,
    "full": keep_nothing,
}


def tiny_decoder(tokenizer: TextTokenizer) -> DecoderConfig:
    """The tiny shape with a tokenizer's vocabulary."""
    return tiny(tokenizer.padded_vocab_size(16))


def make_policy_fn(decoder: DecoderConfig, *, together: int = 1, **functions: Any) -> PolicyFn:
    """The decoder as the update sees it; `functions` as `completion_log_probs_and_entropy` has.

    Of packed batches, `together` parts are computed at a time.
    """

    def policy_fn(
        params: Params, batch: Batch[jax.Array], temperature: jax.Array
    ) -> PolicyOutput[jax.Array]:
        if batch.packing is not None:
            packed = packed_log_probs_and_entropy
            how = {**functions, "together": together}
            found = packed(params, decoder, batch.packing, temperature, **how)
            by_tokens = batch.packing.groups is not None
            return in_order(found, batch.packing, len(batch.rewards)) if by_tokens else found
        return completion_log_probs_and_entropy(params, decoder, batch, temperature, **functions)

    return policy_fn


def make_model(prepared: Prepared, console: Console) -> tuple[DecoderConfig, Params]:
    """The decoder's shape and its first parameters; says what computes attention and log-probs."""
    config = prepared.config
    check_available(config.kernels.log_probs)
    decoder, params = _make_model(prepared, console)
    console.print(
        f"attention: {attention.describe(config.kernels.attention, jax.default_backend())}"
    )
    console.print(f"log-probs: {choose(config.kernels.log_probs, decoder.vocab_size)}")
    return decoder, params


def _make_model(prepared: Prepared, console: Console) -> tuple[DecoderConfig, Params]:
    config, tokenizer = prepared.config, prepared.tokenizer
    dtype = DTYPES[config.model.dtype]
    if config.model.path is not None:
        return load_pretrained(config.model.path, dtype)
    key = jax.random.key(config.seed)
    if config.model.random != "none":
        decoder = {**SHAPES, "tiny": tiny_decoder(tokenizer)}[config.model.random]
        check_vocabulary(tokenizer, decoder, f"--model.random {config.model.random}")
        check_room(decoder, dtype, f"--model.random {config.model.random}")
        return decoder, init_params(decoder, key, dtype)
    if prepared.lessons is None:
        raise ValueError(
            f"task {prepared.task.name!r} needs a model that can read it: give --model.path a"
            " Hugging Face folder, a column of worked solutions (--data.solution-column) that a"
            " small decoder imitates first, or --model.random tiny to prove the path with random"
            " weights"
        )
    decoder = tiny_decoder(tokenizer)
    return decoder, warm_started(config, decoder, tokenizer, prepared.lessons, dtype, console)


def save_model(
    folder: Path, decoder: DecoderConfig, params: Params, tokenizer: TextTokenizer
) -> None:
    """Writes a Hugging Face folder that servers and later runs can start from, adapters merged.

    Raises:
      NotFiniteError: a weight is NaN or infinite; the folder stays as it was.
    """
    require_finite(params, f"the weights are not saved, and {folder} stays as it was")
    ends = {"eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id}
    tokenizer.save(folder)
    save_pretrained(folder, decoder, merge(params), extra_fields=ends)


def warm_started(
    config: TrainConfig,
    decoder: DecoderConfig,
    tokenizer: TextTokenizer,
    lessons: Lessons,
    dtype: Any,
    console: Console,
) -> Params:
    """Imitates demonstrations, or reads what an equal imitation left in the cache."""
    folder = _cache_folder(config, decoder, tokenizer, lessons)
    if config.warm_start.cache and (folder / "config.json").is_file():
        console.print(f"warm start read from {folder}", markup=False, soft_wrap=True)
        return load_pretrained(folder, dtype)[1]
    groups = lessons.groups(tokenizer)
    batch = pad_groups(
        groups,
        config.longest_prompt,
        config.longest_completion,
        rewards=np.zeros((len(groups), len(groups[0].completions)), np.float32),
    )
    params = _imitate(config, decoder, batch, dtype, console)
    if config.warm_start.cache:
        _store(folder, decoder, params)
    return params


def _imitate(
    config: TrainConfig,
    decoder: DecoderConfig,
    batch: Batch[np.ndarray],
    dtype: Any,
    console: Console,
) -> Params:
    warm = config.warm_start
    optimizer = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.01, max_grad_norm=1.0)
    state = init_state(init_params(decoder, jax.random.key(config.seed), dtype), optimizer)
    imitate = make_imitate(optimizer, make_policy_fn(decoder))
    rate = optax.cosine_decay_schedule(warm.learning_rate, warm.steps)
    batches = _batches(batch, warm, config.seed)
    remedy = f"a smaller --warm-start.learning-rate than {warm.learning_rate:g} may help"
    with warm_start_bar(console, warm.steps) as show:
        for step, turn in enumerate(warm_start(state, batches, imitate, rate), start=1):
            state, loss = turn
            found = f"the warm start diverged: its loss is {loss} at step {step}"
            require(math.isfinite(loss), f"{found}; {remedy}")
            show(step, loss)
    require_finite(state.params, f"the warm start diverged at its last step; {remedy}")
    return state.params


def _batches(
    demonstrations: Batch[np.ndarray], warm: WarmStart, seed: int
) -> Iterator[Batch[jax.Array]]:
    stream = PromptStream(len(demonstrations.prompt_ids), warm.batch, seed)
    for step in range(warm.steps):
        yield jax.tree.map(jnp.asarray, take(demonstrations, stream.indices(step)))


def _cache_folder(
    config: TrainConfig, decoder: DecoderConfig, tokenizer: TextTokenizer, lessons: Lessons
) -> Path:
    """Named by everything that the result depends on, our own code included.

    The demonstrations themselves would say it more simply, but take seconds to make.
    """
    digest = hashlib.sha256()
    recipe = {
        "decoder": dataclasses.asdict(decoder),
        "warm_start": dataclasses.asdict(config.warm_start) | {"cache": True},
        "lengths": [config.longest_prompt, config.longest_completion],
        "prompt": tokenizer.prompt_template,
        "seed": config.seed,
        "dtype": config.model.dtype,
        "versions": [jax.__version__, optax.__version__, np.__version__],
        "backend": jax.default_backend(),
    }
    digest.update(json.dumps(recipe, sort_keys=True).encode())
    digest.update(tokenizer.backend.to_str().encode())
    digest.update(lessons.key.encode())
    for source in _sources():
        digest.update(source.read_bytes())
    return cache_path() / "warm-start" / digest.hexdigest()[:24]


def _sources() -> list[Path]:
    """The code that demonstrates, and that imitates."""
    packages = [Path(found) for module in (policy, learner) for found in module.__path__]
    found = [source for package in packages for source in sorted(package.glob("*.py"))]
    own = (arithmetic, batch_types, batching, demonstrations)
    return [*(Path(str(module.__file__)) for module in own), Path(__file__), *found]


def _store(folder: Path, decoder: DecoderConfig, params: Params) -> None:
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}")
    save_pretrained(scratch, decoder, params)
    try:
        scratch.rename(folder)
    except OSError:  # another run stored the same weights first
        shutil.rmtree(scratch)
