"""Start without reading the system's certificate authorities, which the broker never uses.

aiohttp's client creates TLS contexts when it is imported, and each context reads the certificates
of all authorities that the system trusts. The broker imports aiohttp only for its parser of
requests. Its own TLS contexts read the files that the configuration names.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_authorities() -> Iterator[None]:
    """Let TLS contexts that are created in this block find no authorities of the system. The
    environment is changed during the block, so no other thread may run."""
    import ssl  # late, because the help does not need it

    paths = ssl.get_default_verify_paths()
    names = (paths.openssl_cafile_env, paths.openssl_capath_env)
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
