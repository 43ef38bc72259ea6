"""Many who wait for a server, and none that comes."""

import asyncio
import threading
import time
from concurrent.futures import Future

import pytest

from ogrpo.rollout.vllm import RolloutError
from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities, table
from ogrpo.rollout.vllm.fleet import Fleet, Server

PATIENCE = 0.2


async def nobody(_: Server) -> None:
    raise AssertionError("no server is looked at")


async def give_up_together(waiters: int) -> None:
    """All run out of patience in one turn of the loop; the first to say so cancels the others."""
    server = Server(ServerApi("http://127.0.0.1:9", headers={}, timeout=1.0), down=True)
    fleet = Fleet(servers=[server], per_server=4, patience=PATIENCE, revive=nobody, version=0)
    asyncio.get_running_loop().call_later(PATIENCE / 2, time.sleep, PATIENCE)
    with pytest.raises(ExceptionGroup) as caught:
        await all_acquire(fleet, waiters)
    assert {type(error) for error in caught.value.exceptions} == {RolloutError}
    await fleet.notify()
    await fleet.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def all_acquire(fleet: Fleet, waiters: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(waiters):
            group.create_task(fleet.acquire())


def test_those_who_give_up_leave_no_lock_behind():
    """In a thread that may be left behind: who waits for such a lock cannot be cancelled."""
    done: Future[None] = Future()

    def work():
        try:
            done.set_result(asyncio.run(give_up_together(8)))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    done.result(timeout=20)


def test_what_a_server_says_of_itself_is_shown_and_not_obeyed():
    found = Capabilities(
        url="http://127.0.0.1:9",
        vllm="\x1b]0;title\x07",
        model="\x1b[2J\u202epolicy",
        max_model_len=8,
        log_probs="raw",
        tokenizer="the trainer's",
        native=False,
        dev_mode=False,
        extension=None,
        ranks=1,
    )
    shown = table([found])
    assert r"\x1b[2J\u202epolicy" in shown
    assert r"vLLM \x1b]0;title\x07" in shown
    assert "\x1b" not in shown
