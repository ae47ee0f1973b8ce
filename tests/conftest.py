"""What every test relies on: double precision, no silent broadcasting over ranks, and a compilation cache.

Importing jaxmbd changes none of these settings; the tests choose them here, once.
"""

import gc
import os
import re
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Through the environment, so that the programs which tests start share the cache too.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
# Tests compile much and compute little: without the compiler's optimisations a program is ready in two thirds of the
# time, and with its older emitter of kernels and one piece of machine code a program (flags of this version of XLA; an
# unknown flag would be fatal) in half. Traced programs are many small objects: collecting garbage seldom saves a fifth.
HASTE = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):
    HASTE += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
gc.set_threshold(100_000, 50, 50)
os.environ.setdefault("XLA_FLAGS", HASTE)

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update(
    "jax_persistent_cache_min_compile_time_secs", float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
)

CONTRACT_ID = re.compile(r"S[1-5]-\d{2}")


def pytest_collection_modifyitems(items):
    """A contract line is named by its number: a misspelt one would tick nothing and nobody would notice."""
    for item in items:
        for mark in item.iter_markers("contract"):
            wrong = [i for i in mark.args if not (isinstance(i, str) and CONTRACT_ID.fullmatch(i))]
            if wrong or not mark.args:
                raise pytest.UsageError(
                    f"{item.nodeid}: contract{mark.args} does not name a line; write contract('S2-16'), one or several"
                )


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Compiled programs of one file are of no use to the next, and would fill the memory."""
    yield
    jax.clear_caches()
