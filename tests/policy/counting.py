"""The products that a program computes on its inputs: loops as often as they turn, branches taken."""

import math
from typing import Any

import jax
from jax.extend.core import Literal

CALLS = {"jit": "jaxpr", "checkpoint": "jaxpr", "remat2": "jaxpr", "closed_call": "call_jaxpr"}
CUSTOM = {"custom_vjp_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}


def computed_flops(function: Any, *arguments: Any) -> int:
    """2 x multiply-accumulates of the products, run operation by operation."""
    flat = jax.tree.leaves(arguments)
    counter = Counter()
    closed = jax.make_jaxpr(function)(*arguments)
    counter.run(closed.jaxpr, closed.consts, flat)
    return counter.flops


class Counter:
    """Runs jaxprs and adds up."""

    def __init__(self) -> None:
        self.flops = 0

    def run(self, jaxpr: Any, consts: Any, arguments: Any) -> list[Any]:
        jaxpr, consts = (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "consts") else (jaxpr, consts)
        known = dict(zip(jaxpr.constvars, consts, strict=True))
        known |= dict(zip(jaxpr.invars, arguments, strict=True))

        def value(var: Any) -> Any:
            return var.val if isinstance(var, Literal) else known[var]

        for eqn in jaxpr.eqns:
            found = self.step(eqn, [value(var) for var in eqn.invars])
            known |= dict(zip(eqn.outvars, found, strict=True))
        return [value(var) for var in jaxpr.outvars]

    def step(self, eqn: Any, inputs: list[Any]) -> list[Any]:
        name, params = eqn.primitive.name, eqn.params
        inner = {**CALLS, **CUSTOM}.get(name)
        if inner is not None:
            return self.run(params[inner], (), inputs)
        if name in ("while", "scan", "cond"):
            return getattr(self, f"{name}_")(params, inputs)
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            depth = math.prod(inputs[0].shape[axis] for axis in contracted)
            self.flops += 2 * depth * eqn.outvars[0].aval.size
        found = eqn.primitive.bind(*inputs, **params)
        return found if eqn.primitive.multiple_results else [found]

    def while_(self, params: Any, inputs: list[Any]) -> list[Any]:
        a, b = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        asked, fixed, carry = inputs[:a], inputs[a:b], inputs[b:]
        while self.run(params["cond_jaxpr"], (), [*asked, *carry])[0]:
            carry = self.run(params["body_jaxpr"], (), [*fixed, *carry])
        return carry

    def scan_(self, params: Any, inputs: list[Any]) -> list[Any]:
        a, b = params["num_consts"], params["num_consts"] + params["num_carry"]
        fixed, carry, rows = inputs[:a], inputs[a:b], inputs[b:]
        count, made = len(carry), []
        for turn in range(params["length"]):
            at = params["length"] - 1 - turn if params["reverse"] else turn
            found = self.run(params["jaxpr"], (), [*fixed, *carry, *(row[at] for row in rows)])
            carry = found[:count]
            made.append(found[count:])
        made = made[::-1] if params["reverse"] else made
        return [*carry, *map(jax.numpy.stack, zip(*made, strict=True))]

    def cond_(self, params: Any, inputs: list[Any]) -> list[Any]:
        return self.run(params["branches"][int(inputs[0])], (), inputs[1:])
