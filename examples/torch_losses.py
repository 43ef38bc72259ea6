"""Our losses in a PyTorch trainer: their values and their gradients.

    python examples/torch_losses.py

JAX computes a loss and its gradient in the log-probs, both at once; PyTorch carries that gradient
on into the model. Tensors cross by DLPack. The table trains a policy in PyTorch with three of our
losses; above it GRPO's gradient is set beside PyTorch's own of the same formula.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch

from ogrpo import OBJECTIVES, TokenBatch, sequence_mean

# ---------------------------------------------------------------------------------------


class _JaxLoss(torch.autograd.Function):
    """A loss whose gradient is known as soon as its value is."""

    @staticmethod
    def forward(ctx, log_probs, value_and_grad, batch):
        value, gradient = value_and_grad(to_jax(log_probs), batch)
        ctx.save_for_backward(to_torch(gradient).to(log_probs.dtype))
        return to_torch(value).to(log_probs.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, incoming):
        (gradient,) = ctx.saved_tensors
        return incoming * gradient, None, None


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """The same memory as a JAX array; float32 where PyTorch had float64."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bool:  # DLPack has known it only lately
        return jnp.from_dlpack(tensor.to(torch.uint8)).astype(bool)
    return jnp.from_dlpack(tensor.float())


def to_torch(array: jax.Array) -> torch.Tensor:
    """A tensor that may be written to: JAX's own arrays may not."""
    return torch.from_dlpack(array).clone()


def torch_loss(objective: Callable, reduction: Callable = sequence_mean) -> Callable:
    """A loss for PyTorch, with a gradient.

    Args:
      objective: one of `ogrpo.OBJECTIVES`, or `(log_probs, TokenBatch) -> [..., T]`.
      reduction: `(values, mask) -> scalar`.

    Returns:
      A function of tensors [N, T]: the policy's log-probs, advantages spread over the tokens, a
      bool mask and the sampler's log-probs; the trainer's own before the update and the
      reference's, if the objective reads them. It returns a scalar tensor to call `backward` on.
    """

    def scalar(log_probs, batch):
        return reduction(objective(log_probs, batch), batch.mask)

    compiled = jax.jit(jax.value_and_grad(scalar))

    def loss(log_probs, advantages, mask, behavior, proximal=None, reference=None):
        proximal, reference = (behavior if x is None else x for x in (proximal, reference))
        tensors = (advantages, mask, behavior, proximal, reference)
        return _JaxLoss.apply(log_probs, compiled, TokenBatch(*map(to_jax, tensors)))

    return loss


# ---------------------------------------------------------------------------------------

NUMBERS, LENGTH, GROUP, STEPS = 10, 4, 32, 80


def by_hand(log_probs, advantages, mask, behavior):
    """GRPO's clipped loss in PyTorch alone."""
    ratio = (log_probs - behavior).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return -((gain * mask).sum(-1) / mask.sum(-1)).mean()


class Policy(torch.nn.Module):
    """The next digit from the one before it."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(NUMBERS, 32)
        self.head = torch.nn.Linear(32, NUMBERS)

    def forward(self, before):
        """log pi(. | before), [..., V]."""
        return self.head(self.embedding(before).tanh()).log_softmax(-1)

    def log_probs(self, prompts, tokens):
        """log pi of completions [N, T] of prompts [N]."""
        before = torch.cat([prompts[:, None], tokens[:, :-1]], dim=1)
        return self(before).gather(-1, tokens[..., None])[..., 0]

    @torch.no_grad()
    def sample(self, prompts):
        """Completions [N, T]."""
        tokens = [prompts]
        for _ in range(LENGTH):
            tokens.append(self(tokens[-1]).exp().multinomial(1)[:, 0])
        return torch.stack(tokens[1:], dim=1)


def draw(policy):
    """Prompts, completions, the arguments of a loss after the log-probs, and the mean reward."""
    prompts = torch.arange(NUMBERS).repeat_interleave(GROUP)
    tokens = policy.sample(prompts)
    right = (prompts[:, None] + torch.arange(1, LENGTH + 1)) % NUMBERS == tokens
    rewards = right.float().mean(-1)
    groups = rewards.view(NUMBERS, GROUP)
    scale = groups.std(-1, keepdim=True) + 1e-4
    advantages = ((groups - groups.mean(-1, keepdim=True)) / scale).view(-1, 1).expand(-1, LENGTH)
    behavior = policy.log_probs(prompts, tokens).detach()
    return prompts, tokens, (advantages, torch.ones_like(right), behavior), rewards.mean().item()


def gradient(policy, prompts, tokens, loss, tensors):
    """The gradient of a loss in all the policy's weights, as one vector."""
    value = loss(policy.log_probs(prompts, tokens), *tensors)
    return torch.cat([x.flatten() for x in torch.autograd.grad(value, [*policy.parameters()])])


def train(loss, steps=STEPS):
    """The mean reward before and after: two updates on each batch."""
    torch.manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    seen = []
    for _ in range(steps):
        prompts, tokens, tensors, reward = draw(policy)
        seen.append(reward)
        for _ in range(2):
            optimizer.zero_grad()
            loss(policy.log_probs(prompts, tokens), *tensors).backward()
            optimizer.step()
    return seen[0], seen[-1]


def difference():
    """The largest difference between our gradient and PyTorch's, relative to the largest entry."""
    torch.manual_seed(0)
    policy = Policy()
    prompts, tokens, (advantages, mask, behavior), _ = draw(policy)
    tensors = advantages, mask, behavior + 0.3 * torch.randn_like(behavior)  # an older sampler
    losses = torch_loss(OBJECTIVES["grpo"]), by_hand
    ours, theirs = (gradient(policy, prompts, tokens, loss, tensors) for loss in losses)
    return float((ours - theirs).abs().max() / theirs.abs().max())


def main():
    """Prints how far the gradients are apart, and what three losses reach."""
    print(f"gradient of grpo, ours against PyTorch's: {difference():.1e} apart, relative")
    print(f"{'loss':<10}{'reward before':>15}{'after':>8}")
    for name in ("grpo", "gspo", "cispo"):
        before, after = train(torch_loss(OBJECTIVES[name]))
        print(f"{name:<10}{before:>15.3f}{after:>8.3f}")


if __name__ == "__main__":
    main()
