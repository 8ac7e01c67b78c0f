"""Growing a forest: in this process, or block by block wherever joblib sends tasks."""

from dataclasses import replace
from itertools import pairwise

import joblib
import numpy as np

from letheon import _core
from letheon.forest._inputs import Batch
from letheon.forest._model import Bytes, ForestModel, core_arguments, encode
from letheon.forest._settings import Settings
from letheon.forest._threads import grows_elsewhere, threads_for
from letheon.parallel import run_tasks


def grow(settings: Settings, batch: Batch, n_jobs: int | None) -> ForestModel:
    """Return the forest of these rows; how it is grown never changes it."""
    workers = min(joblib.effective_n_jobs(n_jobs), settings.n_trees) if grows_elsewhere() else 1
    if workers == 1:
        return ForestModel.fit(settings, batch, threads_for(n_jobs))
    with np.errstate(over="ignore"):  # the core refuses infinity
        batch = replace(batch, X=np.ascontiguousarray(batch.X, np.float32))
    bounds = np.linspace(0, settings.n_trees, workers + 1).astype(int).tolist()
    blocks = run_tasks(grow_block, list(pairwise(bounds)), n_jobs=n_jobs, shared=(settings, batch))
    return ForestModel.join(settings, batch, blocks, threads_for(n_jobs))


def grow_block(settings: Settings, batch: Batch, first: int, last: int) -> Bytes:
    """Return the canonical bytes of trees first..last."""
    table, target = encode(settings, batch.target)
    forest = _core.Forest(settings.spec(first, last))
    forest.fit(**core_arguments(settings, batch, target, table), n_threads=1)
    order = np.arange(0 if table is None else len(table), dtype=np.uint32)
    return forest.trees(order, 1)
