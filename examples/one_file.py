"""Off-policy GRPO from the first word to the last score, in one file.

    python examples/one_file.py

The library's default run (`python -m experiments.run gsm8k`, seed 0), without its options. Of ours
it imports the algebra alone. `tests/examples/test_one_file.py` holds its weights to the library's.

    problems -> imitation of a careless teacher -> pi_theta
    every SYNC_INTERVAL steps: the sampler's weights mu <- pi_theta
    every step: prompts -> completions from mu -> rewards -> replay buffer -> batch -> update

Axes: N prompts, G completions of a prompt, P prompt tokens, T completion tokens, S either, V words,
L layers, H heads of queries and K of keys, D numbers in a head, d in a hidden state.
"""

import hashlib
import lzma
import re
from collections import deque
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ogrpo.core.advantages import group_standardized
from ogrpo.core.aggregate import sequence_total, token_mean
from ogrpo.core.objectives import TokenBatch, token_loss
from ogrpo.core.surrogates import clipped_surrogate

SEED, STEPS, SYNC_INTERVAL, PROMPTS, GROUP, EVALUATE_EVERY = 0, 240, 10, 16, 8, 40
RATE, WARMUP, DECAY, EPS, TEMPERATURE = 1e-3, 10, 0.9, 0.2, 1.0
DRAWS, CAPACITY = 1, 16  # batches drawn from the buffer in a step; groups that it holds
IMITATIONS, DEMO_BATCH, DEMO_RATE, TRAINED, TESTED = 1200, 32, 5e-3, 8000, 512
P, T, WIDTH, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 32, 14, 64, 176, 2, 2, 1, 32

# --- The task: word problems in GSM8K's format -------------------------------------------------
# "Tom has 7 apples . Tom finds 5 more . How many apples does Tom have now ?", "7 + 5 = 12 #### 12"
# How problems are made says nothing about learning. They are read, as one's own would be, from a
# file that the library made (examples/one_file_data.py): a line of words, each of them a token;
# then a problem a line, with its answer or with four of a careless teacher, many of them wrong.

DATA = Path(__file__).with_name("one_file.txt.xz")
SHA256 = "5e8895034874a34064f99a87acfa1c964edfa120b8447a5f47026bb6e8bd56ee"
if hashlib.sha256(text := lzma.decompress(DATA.read_bytes())).hexdigest() != SHA256:
    raise ValueError(f"{DATA} is not the file that this example was written for: get it again")
WORDS, *rows = [line.split("\t") for line in text.decode().splitlines()]
PROBLEMS, HELDOUT, DEMOS = rows[:TRAINED], rows[TRAINED:][:TESTED], rows[TRAINED + TESTED :]
IDS = {word: n for n, word in enumerate(WORDS)}
EOS, V = IDS["<eos>"], -(-len(WORDS) // 16) * 16


def encode(texts, length, end=()):
    """Returns the tokens of texts, padded on the right: ids and mask [..., length]."""
    rows = [[IDS[word] for word in text.split()] + [*end] for text in texts]
    mask = np.arange(length) < np.array([len(row) for row in rows])[:, None]
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = np.concatenate(rows)
    return ids, mask


def reward(ids, finished, answer):
    """Returns 1 where a completion ended itself and #### precedes one number, the right one."""
    text = " ".join(WORDS[i] if i < len(WORDS) else "?" for i in ids)
    _, marker, tail = text.rpartition("####")
    return float(finished and bool(marker) and re.findall("(?:- )?[0-9]+", tail) == [answer])


def stream_seed(purpose, step):
    """Returns a seed of its own for each purpose and step."""
    return int(np.random.SeedSequence([SEED, *purpose.encode(), step]).generate_state(1)[0] >> 1)


def visit(count, batch, step):
    """Returns the rows that a step visits in endless epochs, each in an order of its own."""
    epoch, start = divmod(step * batch, count)
    return np.random.default_rng([SEED, epoch]).permutation(count)[start : start + batch]


# --- The decoder: Qwen2's, as functions of a dict of arrays ------------------------------------

QKV = {"q": HEADS * HEAD, "k": KV_HEADS * HEAD, "v": KV_HEADS * HEAD}
MATRICES = {f"self_attn.{name}": (size, WIDTH) for name, size in QKV.items()}
MATRICES |= {"self_attn.o": (WIDTH, HEADS * HEAD), "mlp.gate": (INNER, WIDTH)}
MATRICES |= {"mlp.up": (INNER, WIDTH), "mlp.down": (WIDTH, INNER)}


def init_params(key):
    """Draws weights from N(0, 0.02^2), layers stacked on a leading axis; biases 0, norms 1."""
    keys = jax.random.split(jax.random.fold_in(key, 1), LAYERS)
    layers = {f"self_attn.{n}_proj.bias": jnp.zeros((LAYERS, s)) for n, s in QKV.items()}
    for n, (name, shape) in enumerate(MATRICES.items()):
        drawn = [jax.random.normal(jax.random.fold_in(key, n), shape) for key in keys]
        layers[f"{name}_proj.weight"] = 0.02 * jnp.stack(drawn)
    for name in ("input_layernorm", "post_attention_layernorm"):
        layers[f"{name}.weight"] = jnp.ones((LAYERS, WIDTH))
    embedding = 0.02 * jax.random.normal(jax.random.fold_in(key, 0), (V, WIDTH))
    return {"embed_tokens.weight": embedding, "norm.weight": jnp.ones(WIDTH), "layers": layers}


def linear(x, weight, bias=0.0):
    """Maps [N, S, in] to [N, S, out]: x W^T + b."""
    y = jnp.einsum("mi,oi->mo", x.reshape(-1, x.shape[-1]), weight)
    return (y + bias).reshape(*x.shape[:-1], -1)


def rms_norm(x, weight):
    """Maps [N, S, d] to x / rms(x) * w."""
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6) * weight


def rotate(x, positions):
    """Turns each pair (x_i, x_{i + D/2}) of [N, S, H, D] by an angle linear in its position."""
    turns = np.float32(1.0 / 10_000.0 ** (np.arange(0, HEAD, 2, dtype=np.float32) / HEAD))
    angles = positions.astype(jnp.float32)[..., None, None] * turns
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attend(queries, segments):
    """Attends to keys in several places under one softmax. [N, G, T, H, D] to the same.

    A segment is keys and values, [N, S, K, D] where the group shares them or else [N, G, S, K, D],
    and how many of the S each query sees, from the first one on, int [N, G, T].
    """
    n, g, t, h, size = queries.shape
    queries, scores, mixed = queries.reshape(n, g, t, KV_HEADS, h // KV_HEADS, size), [], 0
    for keys, _, seen in segments:
        layout = "nskd" if keys.ndim == 4 else "ngskd"
        raw = jnp.einsum(f"ngtkrd,{layout}->nkgtrs", queries, keys) * size**-0.5
        visible = jnp.arange(keys.shape[-3]) < seen[:, None, :, :, None, None]
        scores.append(jnp.where(visible, raw, jnp.finfo(jnp.float32).min))
    ends = np.cumsum([part.shape[-1] for part in scores])[:-1]
    weights = jnp.split(jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1), ends, axis=-1)
    for part, (_, values, _) in zip(weights, segments, strict=True):
        layout = "nskd" if values.ndim == 4 else "ngskd"
        mixed += jnp.einsum(f"nkgtrs,{layout}->ngtkrd", part, values)
    return mixed.reshape(n, g, t, h, size)


def run_layers(params, ids, positions, mix, contexts=None):
    """Maps tokens [N, S] to hidden states, and keys and values [L, N, S, K, D]; `mix` attends."""

    def layer(x, inputs):
        w, context = inputs
        h, heads = rms_norm(x, w["input_layernorm.weight"]), (*x.shape[:2], -1, HEAD)
        names = [f"self_attn.{n}_proj" for n in "qkv"]
        q, k, v = (linear(h, w[f"{n}.weight"], w[f"{n}.bias"]).reshape(heads) for n in names)
        q, k = rotate(q, positions), rotate(k, positions)
        mixed = mix(q, k, v, context).reshape(*x.shape[:2], -1)
        x = x + linear(mixed, w["self_attn.o_proj.weight"])
        h = rms_norm(x, w["post_attention_layernorm.weight"])
        gate, up = linear(h, w["mlp.gate_proj.weight"]), linear(h, w["mlp.up_proj.weight"])
        return x + linear(jax.nn.silu(gate) * up, w["mlp.down_proj.weight"]), (k, v)

    start = params["embed_tokens.weight"][ids]
    x, cache = jax.lax.scan(layer, start, (params["layers"], contexts))
    return rms_norm(x, params["norm.weight"]), cache


def mix_prompt(mask, q, k, v, _):
    """Attends from prompts [N, P] to themselves: to the tokens before and to itself."""
    seen = jnp.where(mask, jnp.arange(1, mask.shape[1] + 1), 0)
    return attend(q[:, None], [(k, v, seen[:, None])])[:, 0]


def logits(params, hidden):
    """Maps [M, d] to the logits of all words over the temperature, [M, V]."""
    return jnp.einsum("md,vd->mv", hidden, params["embed_tokens.weight"]) / TEMPERATURE


def completion_log_probs(params, prompt_ids, prompt_mask, ids, mask):
    """Returns log pi of completions [N, G, T]. A prompt is computed once for its completions."""
    n, group, length = ids.shape
    starts = jnp.sum(prompt_mask, axis=1)
    places = starts[:, None] + jnp.tile(jnp.arange(length), group)
    positions = jnp.concatenate([jnp.broadcast_to(jnp.arange(P), (n, P)), places], axis=1)

    def mix(q, k, v, context):
        prompts = [x[:, :P] for x in (q, k, v)]
        q, k, v = (x[:, P:].reshape(n, group, length, *x.shape[2:]) for x in (q, k, v))
        of_prompt = jnp.where(mask, starts[:, None, None], 0)
        of_itself = jnp.where(mask, jnp.arange(1, length + 1), 0)
        mixed = attend(q, [(*prompts[1:], of_prompt), (k, v, of_itself)])
        mixed = mixed.reshape(n, group * length, *q.shape[3:])
        return jnp.concatenate([mix_prompt(prompt_mask, *prompts, context), mixed], axis=1)

    tokens = jnp.concatenate([prompt_ids, ids.reshape(n, -1)], axis=1)
    hidden, _ = run_layers(params, tokens, positions, mix)
    within = hidden[:, P:].reshape(n, group, length, -1)[:, :, :-1].reshape(-1, WIDTH)
    first = jax.nn.log_softmax(logits(params, hidden[jnp.arange(n), starts - 1]))
    first = jnp.take_along_axis(first, ids[:, :, 0], axis=-1)
    rest = jax.nn.log_softmax(logits(params, within))
    rest = jnp.take_along_axis(rest, ids[:, :, 1:].reshape(-1, 1), axis=-1)
    joined = jnp.concatenate([first[..., None], rest.reshape(n, group, -1)], axis=-1)
    return jnp.where(mask, joined, 0.0)


def inverse_cdf(probs, uniforms):
    """Draws from distributions [..., V]: a block of about sqrt(V) words, then one within it."""

    def first_beyond(weights, uniform):
        cumulative = jnp.cumsum(weights, axis=-1)
        return jnp.sum(cumulative <= uniform[..., None] * cumulative[..., -1:], axis=-1)

    width = int(np.ceil(np.sqrt(V)))
    probs = jnp.pad(probs, [*[(0, 0)] * (probs.ndim - 1), (0, -V % width)])
    blocks = probs.reshape(*probs.shape[:-1], -1, width)
    block = first_beyond(jnp.sum(blocks, axis=-1), uniforms[..., 0])
    inside = jnp.take_along_axis(blocks, block[..., None, None], axis=-2)[..., 0, :]
    return block * width + first_beyond(inside, uniforms[..., 1])


@partial(jax.jit, static_argnames=("group", "greedy"))
def sample(params, prompt_ids, prompt_mask, key, *, group, greedy):
    """Draws G completions of each prompt. Returns ids, log-probs, mask [N, G, T], and who ended."""
    n, starts, one = len(prompt_ids), jnp.sum(prompt_mask, axis=1), jnp.ones((1, 1, 1), int)
    mix = partial(mix_prompt, prompt_mask)
    hidden, prompts = run_layers(params, prompt_ids, jnp.arange(P)[None], mix)
    fold = jax.vmap(jax.random.fold_in, (None, 0))  # a row draws by itself, whatever the others are
    keys = jax.vmap(fold, (0, None))(fold(key, jnp.arange(n)), jnp.arange(group))
    lots = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (T, 2))))(keys)

    def step(state, inputs):
        (scores, ended, cache), (past, lot) = state, inputs
        log_probs = jax.nn.log_softmax(scores)
        ids = jnp.argmax(log_probs, axis=-1) if greedy else inverse_cdf(jnp.exp(log_probs), lot)
        ids = jnp.where(ended, 0, ids)
        drawn = jnp.take_along_axis(log_probs, ids[..., None], axis=-1)[..., 0]

        def mix(q, k, v, context):
            prompt, completion = context
            parts = [(*prompt, starts[:, None, None]), (*completion, past * one)]
            return attend(q[:, :, None], [*parts, (k[:, :, None], v[:, :, None], one)])[:, :, 0]

        hidden, fresh = run_layers(params, ids, (starts + past)[:, None], mix, (prompts, cache))
        cache = jax.tree.map(lambda c, new: c.at[:, :, :, past].set(new), cache, fresh)
        scores = logits(params, hidden.reshape(-1, WIDTH)).reshape(n, group, V)
        return (scores, ended | (ids == EOS), cache), (ids, jnp.where(ended, 0.0, drawn), ~ended)

    scores = logits(params, hidden[jnp.arange(n), starts - 1])[:, None]
    empty = jnp.zeros((LAYERS, n, group, T, KV_HEADS, HEAD))
    start = jnp.broadcast_to(scores, (n, group, V)), jnp.zeros((n, group), bool), (empty, empty)
    state, drawn = jax.lax.scan(step, start, (jnp.arange(T), jnp.moveaxis(lots, 2, 0)))
    return *(jnp.moveaxis(x, 0, -1) for x in drawn), state[1]


def collect(params, problems, seed, *, group=GROUP, greedy=False):
    """Returns a judged group for each problem: a row of each of the arrays that an update reads."""
    prompts, key = encode([prompt for prompt, _ in problems], P), jax.random.key(seed)
    drawn = sample(params, *prompts, key, group=group, greedy=greedy)
    ids, behavior, mask, ended = map(np.asarray, drawn)
    rewards = [
        [reward(ids[n, g, mask[n, g]], ended[n, g], answer) for g in range(group)]
        for n, (_, answer) in enumerate(problems)
    ]
    return list(zip(*prompts, ids, mask, behavior, np.float32(rewards), strict=True))


# --- Learning -----------------------------------------------------------------------------------


def adam(rate, wd=0.0):
    """Returns AdamW with so much weight decay, of a gradient cut to norm 1."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.98, weight_decay=wd))


@jax.jit
def update(params, state, rate, prompt_ids, prompt_mask, ids, mask, behavior, rewards):
    """Takes a step of off-policy GRPO (arXiv:2505.22257). Returns weights, state and loss.

    A_i = (r_i - mean r) / sqrt(Var r + 1e-6) in each group; the clip is about pi/mu = 1.
    """
    advantages = group_standardized(rewards, eps_inside=1e-6)[..., None]
    known = TokenBatch(jnp.broadcast_to(advantages, mask.shape), mask, behavior, behavior, behavior)
    clip = partial(clipped_surrogate, eps_low=EPS, eps_high=EPS)

    def loss(params):
        log_probs = completion_log_probs(params, prompt_ids, prompt_mask, ids, mask)
        return sequence_total(token_loss(log_probs, known, surrogate_fn=clip), mask)

    (total, count), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    gradient = jax.tree.map(lambda g: g / count, gradient)
    step, state = adam(rate).update(gradient, state, params)
    return optax.apply_updates(params, step), state, total / count


def warm_start():
    """Returns the weights of a decoder that has imitated the careless teacher."""
    prompts = encode([prompt for prompt, *_ in DEMOS], P)
    answers = encode([text for _, *texts in DEMOS for text in texts], T, end=[EOS])
    answers = [x.reshape(len(DEMOS), -1, T) for x in answers]
    params = init_params(jax.random.key(SEED))
    state, rate = adam(RATE).init(params), optax.cosine_decay_schedule(DEMO_RATE, IMITATIONS)

    @jax.jit
    def imitate(params, state, rate, prompts, answers):
        def loss(params):
            return token_mean(-completion_log_probs(params, *prompts, *answers), answers[1])

        value, gradient = jax.value_and_grad(loss)(params)
        step, state = adam(rate, 0.01).update(gradient, state, params)
        return optax.apply_updates(params, step), state, value

    for step in range(IMITATIONS):
        rows = visit(len(DEMOS), DEMO_BATCH, step)
        batch = [x[rows] for x in prompts], [x[rows] for x in answers]
        params, state, loss = imitate(params, state, rate(step), *batch)
    print(f"imitated {IMITATIONS} batches of demonstrations, loss {loss:.3f}", flush=True)
    return params


def evaluate(params, step):
    """Returns held-out Pass@1, of completions sampled at temperature 1 and of greedy ones."""
    starts, seed = range(0, len(HELDOUT), PROMPTS), stream_seed("evaluation", step)
    parts = [(params, HELDOUT[start : start + PROMPTS], seed + start) for start in starts]
    sampled = [group[-1] for part in parts for group in collect(*part)]
    greedy = [group[-1] for part in parts for group in collect(*part, group=1, greedy=True)]
    return float(np.mean(sampled)), float(np.mean(greedy))


def train(params):
    """Runs Algorithm 1 of arXiv:2505.22257 with replay. Yields the weights and a record a step."""
    state, drawn = adam(RATE).init(params), 0
    buffer = deque(maxlen=CAPACITY)  # the newest groups, whole; draws go round and round
    rise = optax.linear_schedule(RATE / (WARMUP + 1), RATE, WARMUP)
    fall = optax.linear_schedule(RATE, RATE * (1 - DECAY), STEPS * DRAWS - WARMUP)
    rate = optax.join_schedules([rise, fall], [WARMUP])
    yield params, {}
    for step in range(STEPS):
        if step % SYNC_INTERVAL == 0:
            server = params
        problems = [PROBLEMS[n] for n in visit(len(PROBLEMS), PROMPTS, step)]
        fresh = collect(server, problems, stream_seed("rollout", step))
        buffer.extend(fresh)
        for draw in range(DRAWS):
            groups = [buffer[(drawn + n) % len(buffer)] for n in range(PROMPTS)]
            drawn, batch = drawn + PROMPTS, [np.stack(rows) for rows in zip(*groups, strict=True)]
            params, state, loss = update(params, state, rate(step * DRAWS + draw), *batch)
        yield params, {"reward": float(np.mean([g[-1] for g in fresh])), "loss": float(loss)}


if __name__ == "__main__":
    for step, (params, _) in enumerate(train(warm_start())):
        if step % EVALUATE_EVERY == 0:
            scores = "{:.3f} sampled, {:.3f} greedy".format(*evaluate(params, step))
            print(f"step {step}: held-out Pass@1 {scores}", flush=True)
