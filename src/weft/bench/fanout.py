"""Calls run here or elsewhere: one after another, by joblib's processes, or on Ray.

A pool takes calls, pairs of a function and its arguments, and gives `(number, result)` as results come, in any order.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

__all__ = ["Pool", "pool"]

Result = TypeVar("Result")
Call = tuple[Callable[..., Result], tuple[object, ...]]


class Pool(Protocol):
    """What runs calls, and gives the number and the result of each as they come."""

    def __call__(self, calls: Sequence[Call[Result]], /) -> Iterator[tuple[int, Result]]: ...


@contextmanager
def pool(on: str, workers: int) -> Iterator[Pool]:
    """What runs calls.

    Args:
        on: `joblib` (this machine), `ray` (Ray on this machine), or a Ray cluster's address.
        workers: how many at a time; one runs them in this process.

    Raises:
        RuntimeError: by the pool, where a worker or the cluster is lost.

    >>> with pool("joblib", 1) as run:
    ...     list(run([(pow, (2, 3)), (pow, (3, 2))]))
    [(0, 8), (1, 9)]
    """
    if on != "joblib":
        with _ray(on, workers) as run:
            yield run
    elif workers == 1:
        yield _one_by_one
    else:
        import joblib

        with joblib.parallel_config(backend="loky", n_jobs=workers, inner_max_num_threads=1):
            yield _joblib


def _numbered(i: int, call: Callable[..., Result], args: tuple[object, ...]) -> tuple[int, Result]:
    return i, call(*args)


def _one_by_one(calls: Sequence[Call[Result]]) -> Iterator[tuple[int, Result]]:
    return iter([_numbered(i, *call) for i, call in enumerate(calls)])


@contextmanager
def _guarded(where: str) -> Iterator[None]:
    """Tells in one sentence who is lost."""
    try:
        yield
    except Exception as error:
        kind = type(error)
        lost = kind.__name__ in ("TerminatedWorkerError", "BrokenProcessPool") or kind.__module__.startswith("ray")
        if not lost:
            raise
        raise RuntimeError(f"{where} was lost ({kind.__name__}: {' '.join(str(error).split())[:120]})") from error


def _joblib(calls: Sequence[Call[Result]]) -> Iterator[tuple[int, Result]]:
    import joblib

    if calls:
        with _guarded("a worker process"), joblib.Parallel(return_as="generator_unordered") as parallel:
            yield from parallel(joblib.delayed(_numbered)(i, *call) for i, call in enumerate(calls))


@contextmanager
def _ray(where: str, workers: int) -> Iterator[Pool]:
    """Ray itself: joblib's backend for it gives results only when all are there."""
    try:
        import ray
    except ImportError as error:
        raise ValueError("expected the package ray for --on ray, which is not installed; pip install ray") from error
    if where != "ray" and ":" not in where:
        raise ValueError(f"expected --on joblib, ray or a Ray cluster's address (host:port), got {where!r}")
    begun = not ray.is_initialized()
    if begun:
        try:
            if where == "ray":
                ray.init(include_dashboard=False, num_cpus=workers, logging_level=logging.ERROR, log_to_driver=False)
            else:
                host, _, port = where.rpartition("/")[2].rpartition(":")
                socket.create_connection((host, int(port)), timeout=10).close()  # Ray itself would knock for minutes
                ray.init(address=where, logging_level=logging.ERROR, log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise OSError(
                f"expected a Ray cluster at {where}, which does not answer ({' '.join(str(error).split())[:150]})"
            ) from error

    def run(calls: Sequence[Call[Result]]) -> Iterator[tuple[int, Result]]:
        remote: Any = ray.remote(num_cpus=1, max_retries=0)(_numbered)
        pending = [remote.remote(i, *call) for i, call in enumerate(calls)]
        with _guarded("a worker or the Ray cluster"):
            while pending:
                ready, pending = ray.wait(pending)
                yield from ray.get(ready)

    try:
        yield run
    finally:
        if begun:
            ray.shutdown()
