"""The project's own sample, not upstream's file: one case of TimerRequest, on its way through a timer server."""

import unittest

from torch.distributed.elastic.timer import TimerServer
from torch.distributed.elastic.timer.api import RequestQueue, TimerRequest

LONG_AGO, FAR_AHEAD = 1.0, 1e12  # seconds since the epoch


class ListQueue(RequestQueue):
    def __init__(self, requests):
        self.requests = requests

    def size(self):
        return len(self.requests)

    def get(self, size, timeout):
        taken, self.requests = self.requests[:size], self.requests[size:]
        return taken


class LedgerServer(TimerServer):
    """Keeps its timers in a list and reaps on paper: "dies" goes, "clings" can't be reaped, "breaks" raises."""

    def __init__(self, requests):
        super().__init__(ListQueue(requests), max_interval=1)
        self.timers, self.reaped = [], []

    def register_timers(self, timer_requests):
        self.timers += timer_requests

    def clear_timers(self, worker_ids):
        self.timers = [timer for timer in self.timers if timer.worker_id not in worker_ids]

    def get_expired_timers(self, deadline):
        expired = {}
        for timer in self.timers:
            if timer.expiration_time <= deadline:
                expired.setdefault(timer.worker_id, []).append(timer)
        return expired

    def _reap_worker(self, worker_id):
        self.reaped.append(worker_id)
        if worker_id == "breaks":
            raise RuntimeError("part of the test: reaping this worker raises")
        return worker_id != "clings"


class TimerApiTest(unittest.TestCase):
    def test_run_watchdog(self):
        waits = TimerRequest(worker_id="waits", scope_id="load", expiration_time=FAR_AHEAD)
        clings = TimerRequest("clings", "step", LONG_AGO)
        requests = [waits, TimerRequest("dies", "load", FAR_AHEAD), TimerRequest("dies", "step", LONG_AGO), clings]
        server = LedgerServer([*requests, TimerRequest("breaks", "step", LONG_AGO)])

        server._run_watchdog()
        # A worker whose reaping raised counts as reaped; of a reaped worker, the valid timers are cleared as well.
        self.assertEqual(["dies", "clings", "breaks"], server.reaped)
        self.assertEqual([waits, clings], server.timers)

        server._run_watchdog()
        # What could not be reaped is tried again.
        self.assertEqual(["dies", "clings", "breaks", "clings"], server.reaped)
        self.assertEqual([waits, clings], server.timers)
