"""The project's own sample, not upstream's file: small cases of configure, expires and the local timer."""

# In the v2.10.0 file, lines 15 to 32 stand as they do upstream, so that the patch for upstream's file applies to it.
# That holds for the order of the imports, too.
# isort: skip_file

import multiprocessing
import os
import signal
import time
import unittest
import unittest.mock as mock

import torch.distributed.elastic.timer as timer
from torch.distributed.elastic.timer.api import TimerRequest
from torch.distributed.elastic.timer.local_timer import MultiprocessingRequestQueue
from torch.testing._internal.common_utils import (
    IS_MACOS,
    IS_WINDOWS,
    run_tests,
    TEST_WITH_DEV_DBG_ASAN,
    TEST_WITH_TSAN,
    TestCase,
)


# timer is not supported on these platforms
INVALID_PLATFORMS = IS_WINDOWS or IS_MACOS or TEST_WITH_DEV_DBG_ASAN

if not INVALID_PLATFORMS:
    # func2 should time out
    def func2(mp_queue):
        timer.configure(timer.LocalTimerClient(mp_queue))
        with timer.expires(after=0.05):
            time.sleep(PATIENCE_SECONDS)

    # How long a case waits for what is about to happen. Nothing here takes that long unless it is broken.
    PATIENCE_SECONDS = 120

    # No process has this id: Linux has none above 2**22.
    NO_PID = 2**30

    class LocalTimerTest(TestCase):
        def setUp(self):
            super().setUp()
            self.mp_queue = multiprocessing.Queue()

        def requests(self, number):
            """The next requests that a client has sent."""
            requests = MultiprocessingRequestQueue(self.mp_queue).get(number, timeout=PATIENCE_SECONDS)
            return [(request.worker_id, request.scope_id, request.expiration_time) for request in requests]

        def assert_killed(self, context):
            """A child that overruns its timer is killed by the server."""
            mp_queue = context.Queue()
            child = context.Process(target=func2, args=(mp_queue,), daemon=True)
            child.start()  # before the server: a process that has threads had better not fork
            self.addCleanup(child.kill)
            server = timer.LocalTimerServer(mp_queue, max_interval=0.05)
            server.start()
            self.addCleanup(server.stop)
            child.join(PATIENCE_SECONDS)
            self.assertEqual(-signal.SIGKILL, child.exitcode)

        def test_no_client(self):
            timer.configure(None)
            with self.assertRaises(RuntimeError), timer.expires(after=PATIENCE_SECONDS):
                self.fail("entered without a client")

        def test_happy_path(self):
            timer.configure(timer.LocalTimerClient(self.mp_queue))
            self.addCleanup(timer.configure, None)
            before = time.time()
            with timer.expires(after=PATIENCE_SECONDS, scope="happy"):
                pass
            acquired, released = self.requests(2)
            self.assertEqual((os.getpid(), "happy"), acquired[:2])
            self.assertGreaterEqual(acquired[2], before + PATIENCE_SECONDS)
            self.assertEqual((os.getpid(), "happy", -1), released)

        def test_client_interaction(self):
            client = timer.LocalTimerClient(self.mp_queue)
            client.acquire = mock.MagicMock(wraps=client.acquire)
            client.release = mock.MagicMock(wraps=client.release)
            with timer.expires(after=PATIENCE_SECONDS, scope="inner", client=client):
                client.acquire.assert_called_once_with("inner", mock.ANY)
                client.release.assert_not_called()
            client.release.assert_called_once_with("inner")

        def test_exception_releases(self):
            client = mock.create_autospec(timer.LocalTimerClient, instance=True)
            with self.assertRaises(KeyError), timer.expires(PATIENCE_SECONDS, scope="failing", client=client):
                raise KeyError("part of the test")
            client.release.assert_called_once_with("failing")

        def test_recursion_shares_the_default_scope(self):
            client = mock.create_autospec(timer.LocalTimerClient, instance=True)

            def descend(depth):
                if depth > 0:
                    with timer.expires(after=PATIENCE_SECONDS, client=client):
                        descend(depth - 1)

            descend(3)
            self.assertEqual(3, client.acquire.call_count)
            self.assertEqual(1, len({call.args[0] for call in client.acquire.call_args_list}))

        def test_spawned_child_times_out(self):
            self.assert_killed(multiprocessing.get_context("spawn"))

        @unittest.skipIf(TEST_WITH_TSAN, "the thread sanitizer does not follow a fork")
        def test_forked_child_times_out(self):
            self.assert_killed(multiprocessing.get_context("fork"))


if not INVALID_PLATFORMS:

    class MultiprocessingRequestQueueTest(TestCase):
        def setUp(self):
            super().setUp()
            self.mp_queue = multiprocessing.Queue()
            self.queue = MultiprocessingRequestQueue(self.mp_queue)
            self.sent = [TimerRequest(worker, "scope", 0) for worker in range(4)]

        def test_get(self):
            self.assertEqual([], self.queue.get(1, timeout=0.01))
            self.mp_queue.put(self.sent[0])
            self.assertEqual(self.sent[:1], self.queue.get(1, timeout=PATIENCE_SECONDS))

        def test_size(self):
            # Raises NotImplementedError on a Python that was built without sem_getvalue: the guard's reason.
            self.assertEqual(0, self.queue.size())
            for request in self.sent:
                self.mp_queue.put(request)
            self.assertEqual(4, self.queue.size())

        def test_get_takes_no_more_than_asked(self):
            for request in self.sent:
                self.mp_queue.put(request)
            self.assertEqual(self.sent[:3], self.queue.get(3, timeout=PATIENCE_SECONDS))
            self.assertEqual(self.sent[3:], self.queue.get(1, timeout=PATIENCE_SECONDS))


if not INVALID_PLATFORMS:

    class LocalTimerServerTest(TestCase):
        def setUp(self):
            super().setUp()
            self.mp_queue = multiprocessing.Queue()
            patch = mock.patch("os.kill")
            self.kill = patch.start()
            self.addCleanup(patch.stop)

        def watch(self, *requests):
            """A server whose watchdog ran once, on these requests. It waits only until it has got them all."""
            for scope, expiration_time in requests:
                self.mp_queue.put(TimerRequest(NO_PID, scope, expiration_time))
            server = timer.LocalTimerServer(self.mp_queue, max_interval=PATIENCE_SECONDS)
            server._run_watchdog()
            return server

        def test_watchdog_call_count(self):
            server = timer.LocalTimerServer(self.mp_queue, max_interval=0.01)
            server._run_watchdog = mock.MagicMock(wraps=server._run_watchdog)
            server.start()
            thread, deadline = server._watchdog_thread, time.monotonic() + PATIENCE_SECONDS
            while server._run_watchdog.call_count < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            server.stop()
            thread.join(PATIENCE_SECONDS)
            self.assertFalse(thread.is_alive())
            self.assertGreaterEqual(server._run_watchdog.call_count, 3)
            self.kill.assert_not_called()

        def test_expired_timer_kills(self):
            server = self.watch(("late", time.time() - 60), ("early", time.time() + 3600))
            self.kill.assert_called_once_with(NO_PID, signal.SIGKILL)
            self.assertEqual({}, server._timers)

        def test_released_timer_is_forgotten(self):
            server = self.watch(("scope", time.time() + 3600), ("scope", -1), ("never acquired", -1))
            self.kill.assert_not_called()
            self.assertEqual({}, server._timers)

        def test_valid_timers_are_kept(self):
            server = self.watch(("one", time.time() + 3600), ("two", time.time() + 3600))
            self.kill.assert_not_called()
            self.assertEqual({(NO_PID, "one"), (NO_PID, "two")}, set(server._timers))


if __name__ == "__main__":
    run_tests()
