"""Processes for calls from many threads: one for each call, or one that coroutines share."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from ogrpo.rewards.reward import files_of_rewards
from ogrpo.system.worker import KilledAtStart, Reply, WorkerProcess

Work = Callable[[WorkerProcess], Reply]
STARTS = 3
"""Times that a process is started which is killed from outside before it is ready."""


class Workers:
    """Processes that have the same functions; they start when they are needed.

    Args:
      functions: what `cloudpickle.dumps` made of each function, by name.
      memory_gib: GiB of address space of each process.
      start_seconds: the bound on a process's start, with the imports of its functions.
      processes: calls that are under way at once, each alone in a process, which the next call
        finds ready.
      concurrency: calls that are under way at once in the process that is shared.
      files: paths of the functions' modules that cannot be imported by name, by that name; None:
        of the rewards that `load_reward` has loaded from files.
    """

    def __init__(
        self,
        functions: Mapping[str, bytes],
        *,
        memory_gib: float,
        start_seconds: float,
        processes: int = 1,
        concurrency: int = 1,
        files: Mapping[str, str] | None = None,
    ) -> None:
        self.started, self.closed = 0, False
        self._functions, self._memory_gib = functions, memory_gib
        self._start_seconds, self._files = start_seconds, files
        self._lock, self._sharing = threading.Lock(), threading.Lock()
        self._workers: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []
        self._shared: WorkerProcess | None = None
        self._alone = ThreadPoolExecutor(processes, "reward")
        self._together = ThreadPoolExecutor(concurrency, "reward-awaited")

    def start(self) -> WorkerProcess:
        """Returns a process that is ready; raises as `WorkerProcess.load` does.

        One that is killed from outside meanwhile, by a machine short of memory or by hand, is
        started again, `STARTS` times in all.
        """
        attempt = 0
        while True:
            attempt += 1
            with self._lock:
                if self.closed:
                    raise RuntimeError("the pool of rewards is closed.")
                files = files_of_rewards() if self._files is None else self._files
                worker = WorkerProcess(self._functions, memory_gib=self._memory_gib, files=files)
                self._workers.add(worker)
                self.started += 1
            try:
                worker.load(self._start_seconds)
                return worker
            except BaseException as error:
                self._end(worker)
                if attempt == STARTS or not isinstance(error, KilledAtStart):
                    raise

    def warm(self, *, shared: bool) -> None:
        """Starts a process, and learns whether the functions can be loaded."""
        worker = self._take(shared)
        if not shared:
            self._idle.append(worker)

    def submit(self, work: Work, *, shared: bool = False) -> Future[Reply]:
        """Calls `work` with a process, as soon as fewer calls than allowed are under way."""
        return (self._together if shared else self._alone).submit(self._run, work, shared)

    def close(self, *, finish: bool = False) -> None:
        """Ends all processes; calls under way in them are answered at once, or finish first."""
        executors = (self._alone, self._together)
        for executor in executors if finish else ():
            executor.shutdown(cancel_futures=True)
        with self._lock:
            workers, self._workers, self.closed = self._workers, set(), True
        for worker in workers:
            worker.kill()
        for executor in executors:
            executor.shutdown(cancel_futures=True)

    def _run(self, work: Work, shared: bool) -> Reply:
        worker, reply = self._take(shared), None
        try:
            reply = work(worker)
            return reply
        finally:
            if reply is not None and reply.kind == "memory":  # who knows what was left undone
                self._end(worker)
            elif not shared:
                self._idle.append(worker)

    def _take(self, shared: bool) -> WorkerProcess:
        if shared:
            with self._sharing:
                if self._shared is None or not self._shared.alive:
                    if self._shared is not None:
                        self._end(self._shared)
                    self._shared = self.start()
                return self._shared
        with contextlib.suppress(IndexError):  # none is idle
            while not (worker := self._idle.pop()).alive:
                self._end(worker)
            return worker
        return self.start()

    def _end(self, worker: WorkerProcess) -> None:
        worker.kill()
        with self._lock:
            self._workers.discard(worker)
