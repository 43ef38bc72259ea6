"""--kernels: the run uses what it says, and says it."""

import io
from contextlib import closing
from typing import get_args, get_type_hints

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

from ogrpo.cli import options
from ogrpo.config.update import Kernels
from ogrpo.kernels.log_probs import NAMES
from ogrpo.setup.build import find_devices
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import prepare
from tests.policy.tiny import ragged_batch

pytestmark = pytest.mark.slow


def test_the_command_line_offers_every_kernel():
    assert get_args(get_type_hints(Kernels)["log_probs"]) == NAMES


@pytest.mark.parametrize(("name", "shown"), [("auto", "reference"), ("chunked", "chunked")])
def test_a_run_says_which_it_uses(name, shown):
    words = ["--model.random=tiny", f"--kernels.log-probs={name}", "--data.train=40"]
    config = options.parse(words, program="train", preset="default")
    console = Console(record=True, file=io.StringIO())
    with closing(prepare(config)) as prepared:
        decoder, params = make_model(prepared, console)
    text = console.export_text()
    assert "attention: blocked from 128 keys on, plain below" in text
    assert f"log-probs: {shown}" in text
    policy = find_devices(prepared.config, decoder).policy_fn
    program = str(jax.make_jaxpr(policy)(params, ragged_batch(decoder), jnp.float32(1)))
    assert ("_swept" in program) == (shown == "chunked")
