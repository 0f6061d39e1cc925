"""The project's own sample, not upstream's file: small cases of RunResult and of the agent that makes and uses it."""

import itertools
import json
import os
import signal
import unittest
from unittest import mock

import torch
from torch.distributed import HashStore
from torch.distributed.elastic import rendezvous
from torch.distributed.elastic.agent.server import RunResult, SimpleElasticAgent, Worker, WorkerGroup, WorkerSpec, api
from torch.distributed.elastic.agent.server.api import WorkerState
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

# Upstream's file has 30 cases up to torch 2.7, 31 in 2.8 and 2.9, 37 from 2.10 on. The sample models this growth:
# a class below that stands under `if TORCH >= ...` tries what that torch release added, and exists from there on.
TORCH = tuple(int(number) for number in torch.__version__.split(".")[:2])


# Every event carries the host's name: this keeps the machine's resolver out of it.
sample_host = mock.patch.object(api, "_get_fq_hostname", new=lambda: "sample-host")


def rendezvous_of_one(waiting=()):
    """A rendezvous in memory: no socket, no host name. Every round has a store of its own."""
    handler = mock.create_autospec(rendezvous.RendezvousHandler, instance=True)
    address = rendezvous.RendezvousStoreInfo("192.0.2.1", 29500)
    handler.next_rendezvous.side_effect = lambda: rendezvous.RendezvousInfo(HashStore(), 0, 1, address)
    handler.num_nodes_waiting.side_effect = itertools.chain(waiting, itertools.repeat(0))
    handler.get_backend.return_value = handler.get_run_id.return_value = "sample"
    return handler


class ScriptedAgent(SimpleElasticAgent):
    """An agent without processes: its workers are in the states that it is given, one after the other."""

    def __init__(self, spec, states=()):
        super().__init__(spec)
        self.states, self.calls = iter(states), []

    def _start_workers(self, worker_group):
        self.calls.append("start")
        return {worker.local_rank: f"worker-{worker.global_rank}" for worker in worker_group.workers}

    def _stop_workers(self, worker_group, is_restart=False):
        self.calls.append("stop")

    def _monitor_workers(self, worker_group):
        return result_of(next(self.states), world_size=len(worker_group.workers))

    def _shutdown(self, death_sig=None, **kwargs):
        self.calls.append("shutdown" if death_sig is None else f"shutdown by {death_sig.name}")


def spec_of(**changes):
    values = {"role": "sample", "local_world_size": 2, "rdzv_handler": rendezvous_of_one(), "entrypoint": print}
    return WorkerSpec(**{**values, "monitor_interval": 0.001, **changes})


def failure_of(rank, exitcode=1):
    return ProcessFailure(local_rank=rank, pid=1000 + rank, exitcode=exitcode, error_file="<N/A>")


def result_of(state, world_size=2):
    if state == WorkerState.SUCCEEDED:
        return RunResult(state, return_values={rank: rank * 10 for rank in range(world_size)})
    if state == WorkerState.FAILED:
        return RunResult(state, failures={0: failure_of(0)})
    return RunResult(state)


class RunResultTest(unittest.TestCase):
    def test_needs_no_more_than_a_state(self):
        result = RunResult(WorkerState.HEALTHY)
        self.assertEqual((WorkerState.HEALTHY, {}, {}), (result.state, result.return_values, result.failures))
        self.assertRaises(TypeError, RunResult)

    def test_defaults_are_not_shared(self):
        first, second = RunResult(WorkerState.SUCCEEDED), RunResult(WorkerState.SUCCEEDED)
        first.return_values[0], first.failures[1] = "done", failure_of(1)
        self.assertEqual(({}, {}), (second.return_values, second.failures))

    def test_only_the_failed_state_is_failed(self):
        self.assertEqual([WorkerState.FAILED], [state for state in WorkerState if RunResult(state).is_failed()])

    def test_maps_ranks_to_values_and_failures(self):
        result = RunResult(WorkerState.FAILED, return_values={0: "done"}, failures={1: failure_of(1, exitcode=7)})
        self.assertEqual(("done", 7), (result.return_values[0], result.failures[1].exitcode))

    def test_equal_by_content(self):
        self.assertEqual(RunResult(WorkerState.SUCCEEDED, {0: 1}), RunResult(WorkerState.SUCCEEDED, {0: 1}, {}))
        self.assertNotEqual(RunResult(WorkerState.SUCCEEDED, {0: 1}), RunResult(WorkerState.SUCCEEDED, {0: 2}))


class WorkerSpecTest(unittest.TestCase):
    def test_refuses_an_empty_group(self):
        self.assertRaises(AssertionError, spec_of, local_world_size=0)

    def test_refuses_to_monitor_without_pause(self):
        self.assertRaises(AssertionError, spec_of, monitor_interval=0)

    def test_needs_an_entrypoint(self):
        self.assertRaises(AssertionError, spec_of, entrypoint=None)

    def test_names_its_entrypoint(self):
        self.assertEqual("print", spec_of().get_entrypoint_name())
        self.assertEqual("train", spec_of(entrypoint="bin/train").get_entrypoint_name())


class WorkerTest(unittest.TestCase):
    def test_has_no_rank_at_first(self):
        worker = Worker(local_rank=3)
        self.assertEqual((3, -1, -1, None), (worker.local_rank, worker.global_rank, worker.world_size, worker.id))

    def test_text_names_its_ranks(self):
        self.assertRegex(str(Worker(1, global_rank=5, world_size=8)), "local_rank=1,global_rank=5,.*world_size=8")

    def test_healthy_and_unhealthy_are_running(self):
        running = set(filter(WorkerState.is_running, WorkerState))
        self.assertEqual({WorkerState.HEALTHY, WorkerState.UNHEALTHY}, running)


class WorkerGroupTest(unittest.TestCase):
    def test_numbers_its_workers(self):
        workers = WorkerGroup(spec_of(local_world_size=3)).workers
        self.assertEqual([0, 1, 2], [worker.local_rank for worker in workers])

    def test_knows_no_peers_before_rendezvous(self):
        group = WorkerGroup(spec_of())
        self.assertEqual((WorkerState.INIT, None, None), (group.state, group.store, group.group_rank))


@sample_host
class SimpleElasticAgentTest(unittest.TestCase):
    def metrics(self, result, *, restarts=0):
        """What an agent with 4 restarts, some of them spent, records of the result."""
        agent = ScriptedAgent(spec_of(max_restarts=4))
        agent._remaining_restarts -= restarts
        with mock.patch.object(api, "put_metric") as put_metric:
            agent._record_metrics(result)
        return {call.args[0].replace("workers.sample.", ""): call.args[1] for call in put_metric.call_args_list}

    def assert_recorded(self, name, metrics):
        """Exactly this one of the four ways in which a run can end."""
        ends = {key for key, value in metrics.items() if key.startswith(("run_success", "run_failed")) and value}
        self.assertEqual({name}, ends)
        self.assertEqual(1, metrics["run_total"])

    def run_agent(self, *states, **changes):
        agent = ScriptedAgent(spec_of(**changes), states)
        return agent, agent.run()

    def ranks(self, workers):
        return [(worker.global_rank, worker.world_size, worker.role_rank, worker.role_world_size) for worker in workers]

    def test_constructor(self):
        agent = ScriptedAgent(spec_of(max_restarts=7))
        self.assertEqual(WorkerState.INIT, agent.get_worker_group().state)
        self.assertEqual(7, agent._remaining_restarts)

    def test_record_metrics_success_no_retries(self):
        result = RunResult(state=WorkerState.SUCCEEDED, return_values={0: "done"}, failures={})
        self.assert_recorded("run_success_no_retries", self.metrics(result))
        self.assertFalse(result.is_failed())
        self.assertEqual(WorkerState.SUCCEEDED, result.state)
        self.assertEqual(({0: "done"}, {}), (result.return_values, result.failures))

    def test_record_metrics_success_with_retries(self):
        self.assert_recorded("run_success_with_retries", self.metrics(result_of(WorkerState.SUCCEEDED), restarts=1))

    def test_record_metrics_failed_no_retries(self):
        failure = failure_of(0)
        result = RunResult(state=WorkerState.FAILED, return_values={}, failures={0: failure})
        self.assert_recorded("run_failed_no_retries", self.metrics(result))
        self.assertTrue(result.is_failed())
        self.assertEqual(WorkerState.FAILED, result.state)
        self.assertEqual(({}, {0: failure}), (result.return_values, result.failures))

    def test_record_metrics_failed_with_retries(self):
        self.assert_recorded("run_failed_with_retries", self.metrics(result_of(WorkerState.FAILED), restarts=2))

    def test_flakiness_grows_with_restarts(self):
        result = result_of(WorkerState.SUCCEEDED)
        self.assertEqual([0, 40, 80], [self.metrics(result, restarts=spent)["flakiness"] for spent in (0, 2, 4)])

    def test_flakiness_of_a_failure_is_total(self):
        self.assertEqual(100, self.metrics(result_of(WorkerState.FAILED))["flakiness"])

    def test_rendezvous_ranks_the_workers(self):
        agent = ScriptedAgent(spec_of())
        group = agent.get_worker_group()
        agent._rendezvous(group)
        self.assertEqual([(0, 2, 0, 2), (1, 2, 1, 2)], self.ranks(group.workers))
        self.assertEqual((0, 1), (group.group_rank, group.group_world_size))
        self.assertEqual(("192.0.2.1", 29500), (group.master_addr, group.master_port))

    def test_rendezvous_prefers_the_address_of_the_spec(self):
        agent = ScriptedAgent(spec_of(master_addr="192.0.2.9", master_port=1))
        group = agent.get_worker_group()
        agent._rendezvous(group)
        self.assertEqual(("192.0.2.9", 1), (group.master_addr, group.master_port))

    def test_assigns_ranks_across_roles(self):
        # An agent waits in the store for the ranks that agent 0 assigns; to do so, that one needs what all have said.
        store, reader = HashStore(), spec_of(role="reader", local_world_size=1)
        store.set("torchelastic/role_info/1", api._RoleInstanceInfo("reader", 1, 1).serialize())
        first = ScriptedAgent(spec_of())._assign_worker_ranks(store, 0, 2, spec_of())
        second = ScriptedAgent(reader)._assign_worker_ranks(store, 1, 2, reader)
        self.assertEqual([(0, 3, 0, 2), (1, 3, 1, 2)], self.ranks(first))
        self.assertEqual([(2, 3, 0, 1)], self.ranks(second))

    def test_assigns_ranks_of_identical_agents_without_a_store(self):
        with mock.patch.dict(os.environ, TORCH_ELASTIC_WORKER_IDENTICAL="1"):
            workers = ScriptedAgent(spec_of())._assign_worker_ranks(None, 2, 4, spec_of())
        self.assertEqual([(4, 8, 4, 8), (5, 8, 5, 8)], self.ranks(workers))

    def test_run_returns_the_result(self):
        agent, result = self.run_agent(WorkerState.HEALTHY, WorkerState.SUCCEEDED)
        self.assertEqual((WorkerState.SUCCEEDED, {0: 0, 1: 10}), (result.state, result.return_values))
        self.assertEqual(["start", "shutdown"], agent.calls)
        self.assertEqual(["worker-0", "worker-1"], [worker.id for worker in agent.get_worker_group().workers])

    def test_run_restarts_what_failed(self):
        agent, result = self.run_agent(WorkerState.FAILED, WorkerState.SUCCEEDED, max_restarts=2)
        self.assertFalse(result.is_failed())
        self.assertEqual(1, agent._remaining_restarts)
        self.assertEqual(["start", "stop", "start", "shutdown"], agent.calls)

    def test_run_gives_up_when_no_restart_is_left(self):
        for state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            agent, result = self.run_agent(state, state, max_restarts=1)
            self.assertEqual(state, result.state)
            self.assertEqual((0, WorkerState.FAILED), (agent._remaining_restarts, agent.get_worker_group().state))

    def test_run_admits_new_nodes_without_spending_a_restart(self):
        changes = {"rdzv_handler": rendezvous_of_one(waiting=[1]), "max_restarts": 2}
        agent, _ = self.run_agent(WorkerState.HEALTHY, WorkerState.SUCCEEDED, **changes)
        self.assertEqual(2, agent._remaining_restarts)
        self.assertEqual(["start", "stop", "start", "shutdown"], agent.calls)

    def test_run_ends_gracefully_or_by_signal(self):
        agent = ScriptedAgent(spec_of())
        with mock.patch.object(agent, "_invoke_run", side_effect=rendezvous.RendezvousGracefulExitError):
            self.assertIsNone(agent.run())
        with mock.patch.object(agent, "_invoke_run", side_effect=SignalException("stop", signal.SIGTERM)):
            self.assertRaises(SignalException, agent.run)
        self.assertEqual(["shutdown", "shutdown by SIGTERM"], agent.calls)


if TORCH >= (2, 8):

    @sample_host
    class EventLogHandlerTest(unittest.TestCase):  # one case
        def test_worker_events_go_where_the_spec_says(self):
            agent = ScriptedAgent(spec_of(event_log_handler="sample"))
            with mock.patch.object(api, "record") as record:
                agent._record_worker_events(result_of(WorkerState.FAILED))
            self.assertEqual({"sample"}, {call.args[1] for call in record.call_args_list})


if TORCH >= (2, 10):

    @sample_host
    class WorkerEventTest(unittest.TestCase):  # three cases
        def events(self, result):
            agent = ScriptedAgent(spec_of())
            agent._rendezvous(agent.get_worker_group())  # ranks the workers, which is how failures are found
            with mock.patch.object(api, "record") as record:
                agent._record_worker_events(result)
            events = [call.args[0].metadata for call in record.call_args_list]
            return [(event["state"], json.loads(event["metadata"])) for event in events]

        def test_failure_has_exit_code_and_pid(self):
            (state, details), _ = self.events(RunResult(WorkerState.FAILED, failures={0: failure_of(0, exitcode=7)}))
            self.assertEqual(("FAILED", [7], [1000]), (state, details["exit_code"], details["worker_pid"]))

        def test_bystander_is_terminated_without_exit_code(self):
            _, (state, details) = self.events(result_of(WorkerState.FAILED))
            self.assertEqual(("TERMINATED", [None]), (state, details["exit_code"]))

        def test_success_has_neither(self):
            for state, details in self.events(result_of(WorkerState.SUCCEEDED)):
                self.assertEqual(("SUCCEEDED", [None], [None]), (state, details["exit_code"], details["worker_pid"]))

    class WorkerSpecOptionsTest(unittest.TestCase):  # three cases
        def test_output_is_not_filtered_unless_asked(self):
            self.assertEqual((None, None), (spec_of().duplicate_stdout_filters, spec_of().duplicate_stderr_filters))

        def test_keeps_the_output_filters(self):
            spec = spec_of(duplicate_stdout_filters=["loss"], duplicate_stderr_filters=["error"])
            self.assertEqual((["loss"], ["error"]), (spec.duplicate_stdout_filters, spec.duplicate_stderr_filters))

        def test_virtual_local_rank_is_off_unless_asked(self):
            self.assertFalse(spec_of().virtual_local_rank)
            self.assertTrue(spec_of(virtual_local_rank=True).virtual_local_rank)
