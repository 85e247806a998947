# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks are threads of this process: what arrives is what NumPy slices."""

from __future__ import annotations

import datetime
import gc
import secrets
import signal
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from oracle import Tensors, engine_parameters, trainer_shards

import crossmesh

Program = Callable[[int, crossmesh.Session], None]


def run_threads(rank_count: int, program: Callable[[int], None]) -> list[BaseException | None]:
    """Runs `program(rank)` on a thread each; returns what each raised."""
    raised: list[BaseException | None] = [None] * rank_count

    def run(rank: int) -> None:
        try:
            program(rank)
        except BaseException as error:
            raised[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(rank_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


class Job:
    """Two trainers that split rows, two engines that split heads."""

    def __init__(self, catalog: crossmesh.Catalog, config: crossmesh.ModelConfig) -> None:
        self.hub = crossmesh.InprocHub()
        self.name = secrets.token_hex(16)
        self.source = crossmesh.shard(catalog, "fsdp=2")
        self.target = crossmesh.family(config, catalog, "tp=2")

    def session(self, rank: int, **options: Any) -> crossmesh.Session:
        return crossmesh.Session(
            session=self.name,
            source_count=2,
            target_count=2,
            rank=rank,
            transport=crossmesh.make_inproc(self.hub, self.name, rank),
            **options,
        )

    def arrays(self, rank: int) -> Tensors:
        layout, side = (self.source, rank) if rank < 2 else (self.target, rank - 2)
        names = [p.name for p in layout.parameters if layout.has_parameter(side, p.name)]
        return {name: np.zeros(layout.local_shape(side, name), np.uint16) for name in names}

    def memory(self, rank: int, arrays: Mapping[str, Any]) -> crossmesh.ParameterMemory:
        if rank < 2:
            return crossmesh.ParameterMemory(self.source, rank, dict(arrays))
        return crossmesh.ParameterMemory(self.target, rank - 2, dict(arrays))


@pytest.fixture
def job(catalog: crossmesh.Catalog, config: crossmesh.ModelConfig) -> Job:
    return Job(catalog, config)


def test_engines_serve_what_numpy_slices(job: Job, tensors: Tensors, config_text: str) -> None:
    reports: dict[tuple[int, int], crossmesh.UpdateReport] = {}
    wrong: list[tuple[int, int, str]] = []
    phases: list[str] = []

    def weights(version: int) -> Tensors:
        return {name: tensor + np.uint16(version) for name, tensor in tensors.items()}

    def program(rank: int) -> None:
        arrays = job.arrays(rank)
        options = {"on_phase": phases.append} if rank == 3 else {}
        with job.session(rank, digest="on", **options) as session:
            session.join()
            session.agree(job.memory(rank, arrays))
            for version in (1, 2, 5):
                if rank < 2:
                    for name, shard in trainer_shards(weights(version), 2, rank).items():
                        arrays[name][:] = shard
                    session.check_replicas()
                    reports[rank, version] = session.update(version)
                    continue
                session.check_replicas()
                reports[rank, version] = session.receive()
                assert str(session.state) == f"EngineState(kind=whole, version={version})"
                expected = engine_parameters(weights(version), config_text, 2, rank - 2)
                assert expected.keys() == arrays.keys()
                for name, bits in expected.items():
                    # Padding is the engine's own: nothing is written there.
                    held = arrays[name]
                    if name in ("model.embed_tokens.weight", "lm_head.weight"):
                        real = min(max(101 - 64 * (rank - 2), 0), 64)
                        bits = np.concatenate([bits[:real], np.zeros_like(bits[real:])])
                    if not np.array_equal(held, bits):
                        wrong.append((rank, version, name))
            assert session.exchange("end", {"rank": rank}) == [{"rank": r} for r in range(4)]
            assert session.version == 5

    assert run_threads(4, program) == [None] * 4
    assert wrong == []
    assert {key: report.version for key, report in reports.items()} == {
        (rank, version): version for rank in range(4) for version in (1, 2, 5)
    }
    bytes_of_rank = [reports[rank, 1].bytes for rank in range(4)]
    assert sum(bytes_of_rank[:2]) == sum(bytes_of_rank[2:]) == 64448
    assert reports[2, 1].digest_bytes == bytes_of_rank[2]
    assert phases[:4] == ["join", "agree", "ready", "start"]


@pytest.mark.parametrize("route", ["direct", "packed"])
def test_opaque_tensors_go_whole_to_the_loader(job: Job, tensors: Tensors, route: Any) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    job.target = job.target.mark_opaque(name, "its loader is special")
    loaded: dict[int, list[tuple[str, tuple[int, ...], bytes]]] = {2: [], 3: []}

    def program(rank: int) -> None:
        arrays = job.arrays(rank)
        if rank < 2:
            for key, shard in trainer_shards(tensors, 2, rank).items():
                arrays[key][:] = shard

        def load(tensor: crossmesh.TensorInfo, data: memoryview) -> None:
            loaded[rank].append((tensor.name, tensor.shape, bytes(data)))

        with job.session(rank) as session:
            session.join()
            session.agree(
                job.memory(rank, arrays), route=route, staging_bytes_max=4096, loader=load
            )
            report = session.update(1) if rank < 2 else session.receive()
            assert rank < 2 or report.bytes_fallback == tensors[name].nbytes

    assert run_threads(4, program) == [None] * 4
    expected = [(name, tensors[name].shape, tensors[name].tobytes())]
    assert loaded == {2: expected, 3: expected}


def failing_job(job: Job, loader: Callable[..., object]) -> list[BaseException | None]:
    job.target = job.target.mark_opaque("model.norm.weight", "asked for")
    # Whoever left before the others heard of it would be missed instead.
    all_heard = threading.Barrier(4, timeout=60)

    def program(rank: int) -> None:
        session = job.session(rank)
        session.join()
        session.agree(job.memory(rank, job.arrays(rank)), loader=loader if rank == 3 else print)
        try:
            session.update(1) if rank < 2 else session.receive()
        finally:
            all_heard.wait()
            assert session.can_retry
            session.close()

    return run_threads(4, program)


def test_what_a_loader_raises_comes_out_and_the_others_hear_of_it(job: Job) -> None:
    def load(tensor: crossmesh.TensorInfo, data: memoryview) -> None:
        raise LookupError(f"no place for {tensor.name}")

    raised = failing_job(job, load)
    assert repr(raised[3]) == "LookupError('no place for model.norm.weight')"
    for other in raised[:3]:
        assert isinstance(other, crossmesh.Error)
        assert str(other) == (
            "session: a callback raised an exception\n"
            "  callback  loader\n"
            "  exception  LookupError: no place for model.norm.weight\n"
            "  rank  3"
        )


def test_a_loader_that_keeps_its_bytes_is_refused(job: Job) -> None:
    kept: list[memoryview] = []

    def load(tensor: crossmesh.TensorInfo, data: memoryview) -> None:
        kept.append(memoryview(data))

    raised = failing_job(job, load)
    assert isinstance(raised[3], BufferError)
    assert str(raised[3]) == (
        "the loader keeps a view of a tensor whose bytes are gone; copy what it keeps"
    )
    assert len(bytes(kept[0])) == 80  # still mapped


def test_other_threads_run_while_a_session_waits(job: Job) -> None:
    ticks = 0
    waits = threading.Event()
    done = threading.Event()

    def program() -> None:
        session = job.session(1, timeout=0.5)
        waits.set()
        with pytest.raises(crossmesh.Error) as raised:
            session.join()
        assert raised.value.code == "timed_out"
        assert raised.value.facts == {"rank": "1", "session": job.name}
        done.set()

    thread = threading.Thread(target=program)
    thread.start()
    waits.wait()
    while not done.is_set():
        ticks += 1
    thread.join()
    assert ticks > 1000


def test_a_signal_ends_a_wait_in_the_main_thread(job: Job) -> None:
    session = job.session(1, timeout=60)
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    begin = time.monotonic()
    # A shell starts its background jobs so that they ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            session.join()
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begin < 30


def test_a_session_belongs_to_one_thread(job: Job) -> None:
    texts: list[str] = []

    def on_phase(phase: str) -> None:
        raised = run_threads(1, lambda rank: session.leave())
        texts.append(str(raised[0]))

    session = job.session(0, timeout=0.1, on_phase=on_phase)
    with pytest.raises(crossmesh.Error):
        session.join()
    assert texts == [
        "leave: the session is in another call\n  rank  0\n  hint  a session belongs to one thread"
    ]


def test_time_limits_are_seconds_of_any_kind(job: Job) -> None:
    for limit in (5, 5.0, datetime.timedelta(seconds=5)):
        job.session(1, timeout=limit).close()
    for limit in (-1, float("nan"), float("inf"), 10**10):
        with pytest.raises(crossmesh.Error) as raised:
            job.session(1, timeout=limit)
        assert raised.value.summary == "session: a time limit is out of range"
        assert raised.value.facts["limit"] == "timeout"


def test_calls_out_of_order_are_refused(job: Job) -> None:
    session = job.session(0)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: session.agree(job.memory(0, job.arrays(0))), "agree: join comes first"),
        (lambda: session.update(1), "update: agree comes first"),
        (lambda: session.receive(), "receive: agree comes first"),
        (lambda: session.schedule, "schedule: agree comes first"),
        (lambda: session.exchange("x", 1), "exchange: join comes first"),
        (lambda: session.leave(), "leave: join comes first"),
    ]
    for call, text in calls:
        with pytest.raises(crossmesh.Error) as raised:
            call()
        assert str(raised.value) == f"{text}\n  rank  0"
    with pytest.raises(crossmesh.Error) as raised:
        session.agree(job.memory(1, job.arrays(1)))
    assert raised.value.facts == {
        "rank": "0",
        "rank of the side": "0",
        "rank of the memory": "1",
    }
    session.close()
    with pytest.raises(crossmesh.Error) as raised:
        session.join()
    assert str(raised.value) == "join: the session is closed\n  rank  0"


def test_a_transport_serves_one_session(job: Job) -> None:
    transport = crossmesh.make_inproc(job.hub, job.name, 0)
    options: dict[str, Any] = {
        "session": job.name,
        "source_count": 2,
        "target_count": 2,
        "rank": 0,
        "transport": transport,
    }
    crossmesh.Session(**options)
    with pytest.raises(crossmesh.Error) as raised:
        crossmesh.Session(**options)
    assert str(raised.value) == (
        "session: the transport is another session's\n"
        "  rank  0\n"
        "  hint  make a transport for each session"
    )


def test_memory_lives_as_long_as_its_session(job: Job) -> None:
    class Owned(np.ndarray):
        """An array that weak references may name."""

    arrays = {name: array.view(Owned) for name, array in job.arrays(3).items()}
    ghost = weakref.ref(arrays["model.norm.weight"])
    memory = job.memory(3, arrays)
    del arrays
    gc.collect()
    assert ghost() is not None
    del memory
    gc.collect()
    assert ghost() is None


def test_a_loader_that_knows_its_session_is_collected(job: Job) -> None:
    class Loader:
        session: crossmesh.Session | None = None

        def __call__(self, phase: str) -> None:
            raise AssertionError

    loader = Loader()
    loader.session = job.session(3, on_phase=loader)
    ghost = weakref.ref(loader)
    del loader
    gc.collect()
    assert ghost() is None
