"""How calls wait for processes: alone in one each, or many coroutines side by side in one."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from ogrpo.rewards.load import files_of_rewards
from ogrpo.system.worker import KilledAtStart, Reply, WorkerProcess

Work = Callable[[WorkerProcess], Reply]
STARTS = 3
"""Times that a process is started which is killed from outside before it is ready."""


class Crew:
    """Starts processes that have the same functions, and ends them all.

    Args:
        functions: what `cloudpickle.dumps` made of each function, by name.
        memory_gib: GiB of address space of each process.
        start_seconds: the bound on a process's start, with the imports of its functions.
        files: modules that functions are of and no import finds, by name; without it those of
            rewards that were loaded from files.
    """

    def __init__(
        self,
        functions: Mapping[str, bytes],
        *,
        memory_gib: float,
        start_seconds: float,
        files: Mapping[str, str] | None = None,
    ) -> None:
        self.started = 0
        self._functions, self._memory_gib = functions, memory_gib
        self._start_seconds, self._files = start_seconds, files
        self._lock = threading.Lock()
        self._workers: set[WorkerProcess] | None = set()  # None: closed

    @property
    def workers(self) -> list[WorkerProcess]:
        """The processes that run."""
        with self._lock:
            return [worker for worker in self._workers or () if worker.alive]

    def start(self) -> WorkerProcess:
        """Return a process that is ready; raise as `WorkerProcess.load` does.

        One that is killed from outside meanwhile, by a machine short of memory or by hand, is
        started again, `STARTS` times in all.
        """
        for _ in range(STARTS - 1):
            with contextlib.suppress(KilledAtStart):
                return self._started()
        return self._started()

    def _started(self) -> WorkerProcess:
        worker = self._begin()
        try:
            worker.load(self._start_seconds)
        except BaseException:
            self.dismiss(worker)
            raise
        return worker

    def _begin(self) -> WorkerProcess:
        with self._lock:
            if self._workers is None:
                raise RuntimeError("the pool of rewards is closed.")
            files = files_of_rewards() if self._files is None else self._files
            worker = WorkerProcess(self._functions, memory_gib=self._memory_gib, files=files)
            self._workers.add(worker)
            self.started += 1
            return worker

    def dismiss(self, worker: WorkerProcess) -> None:
        """End a process."""
        worker.kill()
        with self._lock:
            if self._workers is not None:
                self._workers.discard(worker)

    def close(self) -> None:
        """End all processes; the calls under way in them are answered at once."""
        with self._lock:
            workers, self._workers = self._workers or set(), None
        for worker in workers:
            worker.kill()


class SeparateLane:
    """Up to `processes` calls at once, each alone in a process, which the next call finds ready."""

    def __init__(self, crew: Crew, processes: int) -> None:
        self._crew = crew
        self._threads = ThreadPoolExecutor(processes, "reward")
        self._idle: list[WorkerProcess] = []
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Start a process, and learn whether the functions can be loaded."""
        self._put(self._crew.start())

    def submit(self, work: Work) -> Future[Reply]:
        """Call `work` with a process, as soon as one is free."""
        return self._threads.submit(self._run, work)

    def close(self) -> None:
        """Take no more work, and wait for what is under way."""
        self._threads.shutdown(cancel_futures=True)

    def _run(self, work: Work) -> Reply:
        worker = self._take()
        try:
            reply = work(worker)
        except BaseException:
            self._put(worker)
            raise
        if reply.kind == "memory":  # who knows what was left undone
            self._crew.dismiss(worker)
        else:
            self._put(worker)
        return reply

    def _take(self) -> WorkerProcess:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
                self._crew.dismiss(worker)
        return self._crew.start()

    def _put(self, worker: WorkerProcess) -> None:
        with self._lock:
            self._idle.append(worker)


class SharedLane:
    """Up to `concurrency` calls of coroutines at once, side by side in one process."""

    def __init__(self, crew: Crew, concurrency: int) -> None:
        self._crew = crew
        self._threads = ThreadPoolExecutor(concurrency, "reward-awaited")
        self._worker: WorkerProcess | None = None
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Start the process, and learn whether the functions can be loaded."""
        self._present()

    def submit(self, work: Work) -> Future[Reply]:
        """Call `work` with the process, as soon as fewer than `concurrency` calls are under way."""
        return self._threads.submit(self._run, work)

    def close(self) -> None:
        """Take no more work, and wait for what is under way."""
        self._threads.shutdown(cancel_futures=True)

    def _run(self, work: Work) -> Reply:
        worker = self._present()
        reply = work(worker)
        if reply.kind == "memory":
            self._crew.dismiss(worker)
        return reply

    def _present(self) -> WorkerProcess:
        with self._lock:
            if self._worker is None or not self._worker.alive:
                if self._worker is not None:
                    self._crew.dismiss(self._worker)
                self._worker = self._crew.start()
            return self._worker
