"""Imitation before reinforcement: of a careless teacher, or of a task's worked solutions."""

import dataclasses
import hashlib
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.typing import DTypeLike
from rich.console import Console

from ogrpo import batch as batch_types
from ogrpo import learner, policy
from ogrpo.batch import Batch, take
from ogrpo.config.train import TrainConfig
from ogrpo.core import aggregate
from ogrpo.core.aggregate import token_mean
from ogrpo.data import batching, packing
from ogrpo.data.batching import PromptStream, pad_groups
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.kernels.log_probs import choose, chunked, kernel
from ogrpo.learner.checkpoint import Checkpoints, content_hash
from ogrpo.learner.finite import require_finite
from ogrpo.learner.state import TrainState, adam, apply_gradient, init_state
from ogrpo.learner.update import PolicyFn
from ogrpo.loop import Packer, batches, stream_seed
from ogrpo.loop.batches import make_batch, to_device
from ogrpo.models.convert import whole_folder
from ogrpo.policy import DecoderConfig, Params, init_params
from ogrpo.policy.pretrained import load_pretrained, save_pretrained
from ogrpo.protocol import Completion, Group, IntArray
from ogrpo.report.progress import warm_start_bar
from ogrpo.setup import devices
from ogrpo.setup.cache import cache_path, digest, read_shipped
from ogrpo.setup.devices import REMAT, make_policy_fn
from ogrpo.system import lock
from ogrpo.system.values import require
from ogrpo.tasks import Task, arithmetic, chains
from ogrpo.tasks.arithmetic import WordProblem
from ogrpo.tasks.encode import Encoded
from ogrpo.tasks.problems import Problem

MADE_RATE, LOADED_RATE = 5e-3, 2e-5
"""Peak learning rates: of a decoder that is made here, and of loaded weights."""
MOST_VALIDATED = 64
"""Demonstrations that imitation from loaded weights holds out: one in twenty, so many at most."""


@dataclass(frozen=True)
class Demonstrations:
    """Demonstrations, made when they are needed."""

    groups: Callable[[TextTokenizer], list[Group]]
    """Each prompt with its answers; their log-probs are not read."""
    key: str
    """A hash of what they depend on beside the config."""
    left_out: Sequence[tuple[str, int]] = ()


def careless_teacher(config: TrainConfig, problems: Sequence[WordProblem]) -> Demonstrations:
    """Returns answers of a teacher who makes slips, to problems that are not trained on."""
    warm = config.warm_start
    problems = problems[: warm.problems]

    def groups(tokenizer: TextTokenizer) -> list[Group]:
        show = partial(arithmetic.demonstrate, problems, teacher=arithmetic.TEACHER)
        return _shown(config, tokenizer, problems, show)

    text = "".join(f"{problem.question}\n{problem.answer}\n" for problem in problems)
    return Demonstrations(groups, hashlib.sha256(text.encode()).hexdigest())


def chain_teacher(config: TrainConfig, seed: int) -> Demonstrations:
    """Returns answers of the teacher of `ogrpo.tasks.chains`, whose problems are made with them."""

    def groups(tokenizer: TextTokenizer) -> list[Group]:
        problems = chains.generate(config.warm_start.problems, seed)
        return _shown(config, tokenizer, problems, partial(chains.demonstrate, problems))

    some = chains.generate(64, seed)
    texts = [problem.answer for problem in (*some, *chains.demonstrate(some, seed))]
    return Demonstrations(groups, hashlib.sha256("\n".join(texts).encode()).hexdigest())


def _shown(
    config: TrainConfig,
    tokenizer: TextTokenizer,
    problems: Sequence[Problem],
    show: Callable[..., list[Problem]],
) -> list[Group]:
    """Returns each problem with a number of a teacher's answers, each of a seed of its own."""
    seed = warm_start_seed(config)
    seeds = (stream_seed(seed, "teacher", n) for n in range(config.warm_start.demonstrations))
    answers = [show(seed=seed) for seed in seeds]
    prompts = [tokenizer.encode_prompt(problem.question) for problem in problems]
    return [
        demonstration(prompt, [tokenizer.encode(each.answer, add_eos=True) for each in answered])
        for prompt, *answered in zip(prompts, *answers, strict=True)
    ]


def worked_solutions(
    config: TrainConfig, task: Task, tokenizer: TextTokenizer, train: Encoded
) -> Demonstrations | None:
    """Returns the task's solutions to its training prompts; None where there are none."""
    column = task.solutions
    if column is None:
        return None
    pairs = [
        (ids, tokenizer.encode(str(example.columns[column]), add_eos=True))
        for ids, example in zip(train.prompts, train.examples, strict=True)
        if example.columns.get(column)
    ]
    fitting = [(ids, answer) for ids, answer in pairs if len(answer) <= config.longest_completion]
    content = b"".join(ids.tobytes() + b"\n" + answer.tobytes() + b"\n" for ids, answer in fitting)
    lost = len(pairs) - len(fitting)
    label = f"worked solutions longer than {config.longest_completion} tokens, not imitated"
    return Demonstrations(
        lambda _: [demonstration(ids, [answer]) for ids, answer in fitting],
        hashlib.sha256(content).hexdigest(),
        ((label, lost),) if lost else (),
    )


def demonstration(prompt: IntArray, answers: Sequence[IntArray]) -> Group:
    """Returns a prompt with answers that nobody sampled."""
    written = partial(Completion, policy_version=0, temperature=1.0, finish_reason="stop")
    completions = (
        written(token_ids=token_ids, log_probs=np.zeros(len(token_ids), np.float32))
        for token_ids in answers
    )
    return Group(prompt, tuple(completions))


def fitting_demos(config: TrainConfig, groups: list[Group], console: Console) -> list[Group]:
    """Returns the demonstrations that are as short as completions may be; shows how many are not.

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


def warm_started(
    config: TrainConfig,
    decoder: DecoderConfig,
    tokenizer: TextTokenizer,
    demos: Demonstrations,
    dtype: DTypeLike,
    console: Console,
    *,
    start: Params | None = None,
) -> Params:
    """Imitates demonstrations, or reads what an equal imitation left in the package or the cache.

    Without weights to start from, random ones are.

    Raises:
      ValueError: no demonstration fits, there are fewer than two, imitation diverged, or the file
        of a warm start that the package comes with is not the one that was shipped.
    """
    recipe = warm_start_recipe(config, decoder, tokenizer, demos)
    folder = _cache_folder(recipe, start)
    if start is None and not config.warm_start.retrain:
        shipped = read_shipped(digest(recipe), dtype)
        if shipped is not None:
            console.print(f"warm start read from {shipped[0]}", markup=False, soft_wrap=True)
            return shipped[1]
    cached = config.warm_start.cache and not config.warm_start.retrain
    if cached and (folder / "config.json").is_file():
        console.print(f"warm start read from {folder}", markup=False, soft_wrap=True)
        return load_pretrained(folder, dtype)[1]
    groups = fitting_demos(config, demos.groups(tokenizer), console)
    batch = pad_groups(
        groups,
        config.longest_prompt,
        config.longest_completion,
        rewards=np.zeros((len(groups), len(groups[0].completions)), np.float32),
    )
    steps = folder.with_name(f"{folder.name}.steps")
    with ExitStack() as stack:
        if start is None:
            params = _imitate(config, decoder, batch, dtype, console)
        else:
            if config.warm_start.cache:
                steps.mkdir(parents=True, exist_ok=True)
                say = partial(console.print, markup=False, soft_wrap=True)
                stack.enter_context(lock.held(steps, "imitating the same solutions", say))
            params = _imitate_from(config, decoder, start, batch, steps, console)
        if config.warm_start.cache:
            with whole_folder(folder) as draft:
                tokenizer.save(draft)
                save_pretrained(draft, decoder, params, extra_fields=tokenizer.ends)
            shutil.rmtree(steps, ignore_errors=True)
    return params


def warm_start_seed(config: TrainConfig) -> int:
    """Returns the seed of the first weights, the demonstrations and their order."""
    return config.seed if config.warm_start.seed is None else config.warm_start.seed


def _imitate(
    config: TrainConfig,
    decoder: DecoderConfig,
    demonstrations: Batch[np.ndarray],
    dtype: DTypeLike,
    console: Console,
) -> Params:
    """Imitates from random weights on, on padded batches."""
    warm, seed = config.warm_start, warm_start_seed(config)
    optimizer = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.01, max_grad_norm=1.0)
    state = init_state(init_params(decoder, jax.random.key(seed), dtype), optimizer)
    imitate = make_imitate(optimizer, make_policy_fn(decoder))
    peak = warm.learning_rate or MADE_RATE
    stream = PromptStream(len(demonstrations.prompt_ids), warm.batch, seed)
    batches = (to_device(take(demonstrations, stream.indices(n))) for n in range(warm.steps))
    rate = optax.cosine_decay_schedule(peak, warm.steps)
    turns = warm_start(state, batches, imitate, rate, peak=peak)
    with warm_start_bar(console, warm.steps) as show:
        for step, turn in enumerate(turns, start=1):
            state, loss = turn
            show(step, loss, None)
    return state.params


def _imitate_from(
    config: TrainConfig,
    decoder: DecoderConfig,
    start: Params,
    demonstrations: Batch[np.ndarray],
    steps_folder: Path,
    console: Console,
) -> Params:
    """Imitates from loaded weights on: packed, validated, from its last checkpoint if it has one.

    Args:
      start: the weights, whose buffers are taken.
      demonstrations: padded; the first are held out.
      steps_folder: where checkpoints lie until the result is cached.
    """
    warm, count = config.warm_start, len(demonstrations.prompt_ids)
    require(count > 1, f"there are {count} worked solutions: imitation needs at least 2")
    heldout = min(MOST_VALIDATED, -(-count // 20))
    peak = warm.learning_rate or LOADED_RATE
    rate = optax.warmup_cosine_decay_schedule(0.0, peak, min(10, warm.steps - 1), warm.steps)
    name = choose(config.kernels.log_probs, decoder.vocab_size)
    head = kernel(name, kept_bytes=config.kernels.kept_mib << 20)
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

    stream = PromptStream(count - heldout, warm.batch, warm_start_seed(config))
    with ExitStack() as stack:
        checkpoints = stack.enter_context(Checkpoints(steps_folder, keep=1)) if warm.cache else None
        begin = 0 if checkpoints is None else checkpoints.latest or 0
        if checkpoints is not None and begin:
            state, _ = checkpoints.restore(begin, state)
            console.print(f"imitation goes on from step {begin}")
        show = stack.enter_context(warm_start_bar(console, warm.steps))
        batches = (batch_of(heldout + stream.indices(step)) for step in range(begin, warm.steps))
        turns = warm_start(state, batches, imitate, rate, peak=peak, begin=begin)
        for step, (state, loss) in enumerate(turns, start=begin + 1):
            due = step % warm.save_every == 0 or step == warm.steps
            validation = validated(state.params) if due else None
            show(step, loss, validation)
            if checkpoints is not None and due and step < warm.steps:
                checkpoints.save(step, state, {"loss": loss, "validation": validation})
    return state.params


def warm_start_recipe(
    config: TrainConfig, decoder: DecoderConfig, tokenizer: TextTokenizer, demos: Demonstrations
) -> dict[str, Any]:
    """Returns all that the result depends on but code, versions, machine and weights begun with.

    The demonstrations themselves would say it more simply, but take seconds to make.
    """
    how = dataclasses.asdict(config.warm_start)
    for name in ("cache", "retrain", "seed", "solutions", "save_every"):
        del how[name]
    return {
        "decoder": dataclasses.asdict(decoder),
        "warm_start": {**how, "teacher": dataclasses.asdict(arithmetic.TEACHER)},
        "lengths": [config.longest_prompt, config.longest_completion],
        "prompt": "{question}",
        "vocabulary": sorted(tokenizer.backend.get_vocab().items()),
        "lessons": demos.key,
        "seed": warm_start_seed(config),
        "dtype": config.model.dtype,
    }


def _cache_folder(recipe: dict[str, Any], start: Params | None = None) -> Path:
    """Returns the folder named by everything that the result depends on, our own code included."""
    whole = {
        **recipe,
        "versions": [jax.__version__, optax.__version__, np.__version__],
        "backend": jax.default_backend(),
        "start": None if start is None else content_hash(start),
        "sources": [hashlib.sha256(source.read_bytes()).hexdigest() for source in _sources()],
    }
    return cache_path() / "warm-start" / digest(whole)[:24]


def _sources() -> list[Path]:
    """Returns the files of the code that demonstrates and that imitates."""
    modules = (arithmetic, chains, batch_types, batching, batches, packing)
    packages = [Path(path) for package in (policy, learner) for path in package.__path__]
    return [
        *(Path(str(module.__file__)) for module in (*modules, aggregate, chunked, devices)),
        Path(__file__),
        *(source for package in packages for source in sorted(package.glob("*.py"))),
    ]


ImitateFn = Callable[[TrainState, Batch[Array], Array], tuple[TrainState, Array]]


def make_imitate(optimizer: optax.GradientTransformation, policy_fn: PolicyFn) -> ImitateFn:
    """Returns the jitted step `(state, batch, learning_rate) -> (state, loss)` on demonstrations.

    The loss is the mean negative log-likelihood of the demonstrations' tokens within the loss mask,
    in nats a token; the rewards and behaviour log-probs of the batch are not read. `state` is
    donated.
    """
    loss_fn = imitation_loss(policy_fn)

    def imitate(
        state: TrainState, batch: Batch[Array], learning_rate: Array
    ) -> tuple[TrainState, Array]:
        loss, grads = jax.value_and_grad(loss_fn)(state.params, batch)
        return apply_gradient(state, grads, optimizer, learning_rate), loss

    return jax.jit(imitate, donate_argnums=0)


def imitation_loss(policy_fn: PolicyFn) -> Callable[[Params, Batch[Array]], Array]:
    """Returns `(params, batch) ->` mean negative log-likelihood of a token, in nats."""

    def loss_fn(params: Params, batch: Batch[Array]) -> Array:
        log_probs = policy_fn(params, batch, jnp.float32(1.0)).log_probs
        return token_mean(-log_probs, batch.active_mask)

    return loss_fn


def warm_start(
    state: TrainState,
    batches: Iterable[Batch[Array]],
    imitate: ImitateFn,
    learning_rate: optax.Schedule,
    *,
    peak: float,
    begin: int = 0,
) -> Iterator[tuple[TrainState, float]]:
    """Imitates batch after batch from step `begin` on, yielding the state and the loss.

    Raises:
      ValueError: a loss, or a weight at the end, is not finite; names `peak`, the largest rate.
    """
    remedy = f"a smaller --warm-start.learning-rate than {peak:g} may help"
    for step, batch in enumerate(batches, start=begin):
        state, nats = imitate(state, batch, jnp.float32(learning_rate(step)))
        loss = float(nats)
        finite = math.isfinite(loss)
        require(finite, f"imitation diverged: its loss is {loss} at step {step + 1}; {remedy}")
        yield state, loss
    require_finite(state.params, f"imitation diverged at its last step; {remedy}")
