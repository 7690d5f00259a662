"""Whether this router's request path is compiled. It is the same code either way: see docs/router.md."""

from importlib.machinery import EXTENSION_SUFFIXES

from kveik.router import exchange


def is_compiled() -> bool:
    """Whether the modules that a request passes were compiled by mypyc when Kveik was installed."""
    return str(exchange.__file__).endswith(tuple(EXTENSION_SUFFIXES))
