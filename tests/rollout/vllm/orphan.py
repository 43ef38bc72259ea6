"""A trainer in a process of its own, without JAX, that is killed in the middle of a push."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from ogrpo.rollout.vllm import Expected, Options, VllmEngine
from ogrpo.rollout.weights import read
from tests.rollout.vllm.proxy import Proxy, held

LONG = 120.0


def leave_paused(url, folder, **expected):
    """Kills a trainer with SIGKILL when its push has paused a server, and not resumed it."""
    with Proxy(url) as proxy:
        pause = proxy.spoil("/pause", held)
        arguments = [proxy.url, str(folder), json.dumps(expected)]
        with subprocess.Popen([sys.executable, "-m", __name__, *arguments]) as trainer:
            try:
                assert pause.met.wait(LONG)
                assert trainer.poll() is None
            finally:
                os.kill(trainer.pid, signal.SIGKILL)


def scores(_, sequences):
    """Whatever: the push does not come so far."""
    return [np.zeros(len(ids) - 1, np.float32) for ids in sequences]


def main(url, folder, expected):
    (file,) = Path(folder).glob("*.safetensors")
    terms = Expected(**json.loads(expected), texts=())
    options = Options(timeout=LONG)
    engine = VllmEngine([url], expected=terms, tensors_fn=dict, score_fn=scores, options=options)
    engine.publish(read(file), 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
