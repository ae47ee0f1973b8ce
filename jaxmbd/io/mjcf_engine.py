"""The package `mujoco`, imported when an MJCF file is read and not before. It is compiled and has no type stubs."""

from typing import Any

Model = Any
"""A compiled `mujoco.MjModel`."""


def engine(file: str = "an MJCF file") -> Any:
    """The module `mujoco`.

    Raises:
        ImportError: it is not installed; says what to do for the file to be read.
    """
    try:
        import mujoco
    except ImportError as error:
        text = f"Reading {file} needs MuJoCo's compiler: pip install 'jaxmbd[mjcf]', or pip install mujoco."
        raise ImportError(text) from error
    return mujoco
