"""The policy of a study: loaded, random, or warm-started here from a careless teacher."""

import dataclasses
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
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
from ogrpo.config.train import Model, TrainConfig, WarmStart
from ogrpo.config.values import require
from ogrpo.data import batching
from ogrpo.data.batching import PromptStream, pad_groups
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.kernels import attention
from ogrpo.kernels.log_probs import check_available, choose, kernel
from ogrpo.learner.checkpoint import Checkpoints, content_hash
from ogrpo.learner.finite import require_finite
from ogrpo.learner.state import adam, init_state
from ogrpo.learner.update import PolicyFn, in_order
from ogrpo.learner.warm_start import imitation_loss, make_imitate, warm_start
from ogrpo.loop import Packer
from ogrpo.loop.batches import make_batch
from ogrpo.policy import (
    DecoderConfig,
    Params,
    completion_log_probs_and_entropy,
    init_params,
)
from ogrpo.policy.config import SHAPES, tiny
from ogrpo.policy.decoder import keep_nothing, keep_products
from ogrpo.policy.lora import merge
from ogrpo.policy.packing import packed_log_probs_and_entropy
from ogrpo.policy.pretrained import check_room, load_pretrained, save_pretrained
from ogrpo.protocol import Group
from ogrpo.report.progress import warm_start_bar, weights_bar
from ogrpo.setup import lessons as demonstrations
from ogrpo.setup.cache import cache_path, weights_folder
from ogrpo.setup.lessons import Lessons
from ogrpo.setup.prepare import Prepared, check_vocabulary
from ogrpo.tasks import arithmetic

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
REMAT = {
    "none": jax.checkpoint_policies.everything_saveable,
    "products": keep_products,
    "full": keep_nothing,
}


MADE_RATE, GIVEN_RATE = 5e-3, 2e-5
"""Peak learning rates of imitation: of a decoder that is made here, and of given weights."""
MOST_VALIDATED = 64
"""Demonstrations that imitation of given weights holds out: one in twenty, so many at most."""


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


def with_folder(model: Model, console: Console) -> Model:
    """The model with the folder of its weights, fetched or converted where it names none."""
    if model.path is None:
        return model
    with weights_bar(console) as show:
        return dataclasses.replace(model, path=weights_folder(model.path, show))


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
        decoder, params = load_pretrained(weights_folder(config.model.path), dtype)
        if not config.warm_start.solutions:
            return decoder, params
        if prepared.lessons is None:
            raise ValueError(
                f"task {prepared.task.name!r} has no worked solutions to imitate: leave out"
                " --warm-start.solutions"
            )
        how = (config, decoder, tokenizer, prepared.lessons, dtype, console)
        return decoder, warm_started(*how, start=params)
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
    *,
    start: Params | None = None,
) -> Params:
    """Imitates demonstrations, or reads what an equal imitation left in the cache.

    Without weights to start from, random ones of the config's seed are.
    """
    folder = _cache_folder(config, decoder, tokenizer, lessons, start)
    if config.warm_start.cache and (folder / "config.json").is_file():
        console.print(f"warm start read from {folder}", markup=False, soft_wrap=True)
        return load_pretrained(folder, dtype)[1]
    groups = fitting_lessons(config, lessons.groups(tokenizer), console)
    batch = pad_groups(
        groups,
        config.longest_prompt,
        config.longest_completion,
        rewards=np.zeros((len(groups), len(groups[0].completions)), np.float32),
    )
    if start is None:
        params = _imitate(config, decoder, batch, dtype, console)
    else:
        params = imitate_from(config, decoder, start, batch, folder, console)
    if config.warm_start.cache:
        _store(folder, decoder, params)
    return params


def fitting_lessons(config: TrainConfig, groups: list[Group], console: Console) -> list[Group]:
    """The demonstrations that are as short as completions may be; says how many are left out.

    Raises:
      ValueError: none is.
    """
    longest = config.longest_completion
    fitting = [g for g in groups if all(len(c.token_ids) <= longest for c in g.completions)]
    lost = len(groups) - len(fitting)
    require(
        bool(fitting),
        f"no demonstration has at most rollout.max-tokens = {longest} tokens,"
        " so that there is nothing to imitate: give a larger --rollout.max-tokens, a model"
        " (--model.path), or shorter worked solutions",
    )
    if lost:
        label = f"demonstrations longer than {longest} tokens, not imitated"
        console.print(f"{lost} {label}", style="yellow", markup=False)
    return fitting


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
    peak = warm.learning_rate or MADE_RATE
    rate = optax.cosine_decay_schedule(peak, warm.steps)
    batches = _batches(batch, warm, config.seed)
    remedy = f"a smaller --warm-start.learning-rate than {peak:g} may help"
    with warm_start_bar(console, warm.steps) as show:
        for step, turn in enumerate(warm_start(state, batches, imitate, rate), start=1):
            state, loss = turn
            found = f"the warm start diverged: its loss is {loss} at step {step}"
            require(math.isfinite(loss), f"{found}; {remedy}")
            show(step, loss, None)
    require_finite(state.params, f"the warm start diverged at its last step; {remedy}")
    return state.params


def imitate_from(
    config: TrainConfig,
    decoder: DecoderConfig,
    start: Params,
    demonstrations: Batch[np.ndarray],
    folder: Path,
    console: Console,
) -> Params:
    """Imitates from given weights on: packed, validated, from its last checkpoint if it has one.

    Args:
      config: says how.
      decoder: the weights' shape.
      start: the weights, whose buffers are taken.
      demonstrations: padded; the first are held out.
      folder: where the result will be cached; checkpoints lie beside it until then.
      console: where losses are shown.

    Raises:
      ValueError: the imitation diverged, or there are fewer demonstrations than two.
    """
    warm, count = config.warm_start, len(demonstrations.prompt_ids)
    require(count > 1, f"there are {count} worked solutions: imitation needs at least 2")
    heldout = min(MOST_VALIDATED, -(-count // 20))
    peak = warm.learning_rate or GIVEN_RATE
    remedy = f"a smaller --warm-start.learning-rate than {peak:g} may help"
    rate = optax.warmup_cosine_decay_schedule(0.0, peak, min(10, warm.steps - 1), warm.steps)
    head = kernel(
        choose(config.kernels.log_probs, decoder.vocab_size),
        kept_bytes=config.kernels.kept_mib << 20,
    )
    policy_fn = make_policy_fn(decoder, keep_fn=REMAT[config.model.remat], log_probs_fn=head)
    optimizer = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.0, max_grad_norm=1.0)
    imitate, loss_fn = make_imitate(optimizer, policy_fn), jax.jit(imitation_loss(policy_fn))
    state = init_state(start, optimizer)
    packer = Packer(microbatches=1, skip_zero_variance=False)

    def batch_of(indices: np.ndarray) -> Batch[jax.Array]:
        padded = take(demonstrations, indices)
        return jax.tree.map(jnp.asarray, make_batch(padded, packer, for_update=False).batch)

    def validated(params: Params) -> float:
        parts = np.array_split(np.arange(heldout), -(-heldout // warm.batch))
        losses = [float(loss_fn(params, batch_of(part))) for part in parts]
        return float(np.average(losses, weights=[len(part) for part in parts]))

    stream = PromptStream(count - heldout, warm.batch, config.seed)
    steps_folder = folder.with_name(f"{folder.name}.steps")
    with ExitStack() as stack:
        checkpoints = stack.enter_context(Checkpoints(steps_folder, keep=1)) if warm.cache else None
        begin = 0 if checkpoints is None else checkpoints.latest or 0
        if checkpoints is not None and begin:
            state, _ = checkpoints.restore(begin, state)
            console.print(f"imitation goes on from step {begin}")
        show = stack.enter_context(warm_start_bar(console, warm.steps))
        batches = (batch_of(heldout + stream.indices(step)) for step in range(begin, warm.steps))
        turns = warm_start(state, batches, imitate, rate, begin=begin)
        for step, turn in enumerate(turns, start=begin + 1):
            state, loss = turn
            require(
                math.isfinite(loss), f"imitation diverged: loss {loss} at step {step}; {remedy}"
            )
            due = step % warm.save_every == 0 or step == warm.steps
            validation = validated(state.params) if due else None
            show(step, loss, validation)
            if checkpoints is not None and due and step < warm.steps:
                checkpoints.save(step, state, {"loss": loss, "validation": validation})
    require_finite(state.params, f"imitation diverged at its last step; {remedy}")
    shutil.rmtree(steps_folder, ignore_errors=True)
    return state.params


def _batches(
    demonstrations: Batch[np.ndarray], warm: WarmStart, seed: int
) -> Iterator[Batch[jax.Array]]:
    stream = PromptStream(len(demonstrations.prompt_ids), warm.batch, seed)
    for step in range(warm.steps):
        yield jax.tree.map(jnp.asarray, take(demonstrations, stream.indices(step)))


def _cache_folder(
    config: TrainConfig,
    decoder: DecoderConfig,
    tokenizer: TextTokenizer,
    lessons: Lessons,
    start: Params | None = None,
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
        "start": None if start is None else content_hash(start),
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
