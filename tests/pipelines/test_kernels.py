"""Whole pipelines have the same digest with every BLAS kernel and every number of threads."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info

from tests.pipelines.drawn import MODELS, draw_example, run_recipe

N_PIPELINES = 60
# Kernels of OpenBLAS, and what a CPU needs to run them.
KERNELS = {"Prescott": "pni", "Haswell": "avx2", "SkylakeX": "avx512f"}
CODE = "from tests.pipelines.test_kernels import print_digests; print_digests()"


def print_digests() -> None:
    """Print the kernel, and the digest of each pipeline without a BLAS step after requests."""
    warnings.simplefilter("ignore")
    kernels = sorted({str(pool.get("architecture")) for pool in threadpool_info()})
    sys.stdout.write(f"{kernels}\n")
    number = n_done = 0
    models = set()
    while n_done < N_PIPELINES:
        recipe, seed, requests = draw_example(number)
        number += 1
        if recipe.has_blas:
            continue
        model, fresh, _ = run_recipe(recipe, seed, requests)
        assert model.digest() == fresh.digest(), recipe
        n_done += 1
        models.add(recipe.model)
        sys.stdout.write(f"{recipe} {model.digest()}\n")
    assert models == set(range(len(MODELS)))


def read_flags() -> set[str]:
    cpus = Path("/proc/cpuinfo")
    return set(cpus.read_text().split()) if cpus.exists() else set()


def test_digests_are_the_same_with_all_kernels_and_threads() -> None:
    kernels = [kernel for kernel, flag in KERNELS.items() if flag in read_flags()]
    if len(kernels) < 2:
        pytest.skip("this CPU runs fewer than two of the kernels")
    answers = []
    for kernel, threads in zip(kernels, (1, 2, 4), strict=False):
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, str(threads))
        run = subprocess.run(
            [sys.executable, "-c", CODE],
            env=environment | {"OPENBLAS_CORETYPE": kernel},
            capture_output=True,
            text=True,
            check=True,
        )
        answers.append(run.stdout.splitlines())
    assert len({tuple(answer[1:]) for answer in answers}) == 1
    assert len({answer[0] for answer in answers}) == len(kernels)  # the setting was followed
