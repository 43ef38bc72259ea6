"""What a fleet does while a server of it does nothing, in virtual time."""

from contextlib import contextmanager

from tests.rollout.vllm.staged import Staged
from tests.rollout.vllm.test_schedules import Schedules


@contextmanager
def published(*staged):
    """A fleet over the servers, right after it has published."""
    machine = Schedules()
    machine.staged = [*staged]
    try:
        machine.run(machine.start())
        begin = machine.loop.time()
        machine.run(machine.fleet.publish(machine.target(1)))
        machine.took = machine.loop.time() - begin
        yield machine
        machine.run(machine.fleet.close())
    finally:
        machine.loop.close()


def test_a_publication_does_not_wait_for_a_server_that_hangs():
    hangs, well = Staged(), Staged()
    hangs.faults["update_weights"] = "hang"
    with published(hangs, well) as machine:
        assert machine.took < 10.0
        assert [server.observed.ready for server in machine.servers] == [False, True]


def test_a_resume_that_did_nothing_is_not_believed():
    staged = Staged()
    staged.faults["resume"] = "ignore"
    with published(staged) as machine:
        machine.advance(5.0)
        assert machine.servers[0].observed.ready
        assert not staged.paused
