"""Object stores by their URLs: Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure
Blob Storage, and a folder (`file://`). The library obstore (extra `objectstore`) does the work.

Names are relative to the URL. Data is streamed: an upload holds at most two parts in memory, a
download one part.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from holdfast.commitlog.errors import LogError

#: Size of the parts of an upload and of a download. S3 takes at most 10,000 parts of an object.
PART_BYTES = 8 * 1024 * 1024
_PARTS_AT_ONCE = 2
#: A request may take this long: a part needs 70 KB/s. obstore's default is 30 s.
_REQUEST_TIMEOUT = "120s"
_MAX_REASON = 300
#: Where obstore looks for the credentials of the machine if the environment has none.
_METADATA_SERVICE = "169.254.169.254"
_AZURE = "AZURE_ALLOW_HTTP"
#: Variables that permit HTTP without TLS, by the schemes of URLs.
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": _AZURE, "abfs": _AZURE}

#: Schemes of URLs, and an example of each kind.
SCHEMES = {
    "s3": "s3://BUCKET/PREFIX",
    "gs": "gs://BUCKET/PREFIX",
    "az": "az://CONTAINER/PREFIX",
    "abfs": "abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX",
    "abfss": "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX",
    "file": "file:///FOLDER",
}


@dataclass(eq=False, repr=False)
class StoreUrlWrong(LogError):
    """The URL names no object store. `reason` includes how to fix it."""

    sentence = "{url}: {reason}"
    url: str
    reason: str


@dataclass(eq=False, repr=False)
class ObstoreMissing(LogError):
    """The library for object stores is not installed."""

    sentence = "obstore is not installed, and {url} needs it; pip install 'holdfast[objectstore]'"
    url: str


@dataclass(eq=False, repr=False)
class StoreFailed(LogError):
    """A request to an object store failed, after the retries of its library."""

    sentence = "{where}: {reason}"
    where: str
    reason: str


class AccessDenied(StoreFailed):
    """The credentials are missing or wrong, or do not permit the request."""


class ObjectMissing(StoreFailed):
    """There is no such object, bucket or container."""


class ObjectExists(StoreFailed):
    """An object that was to be created exists already."""


class ObjectStore(Protocol):
    """The objects below one URL. Every method may raise StoreFailed."""

    @property
    def where(self) -> str:
        """The URL, for messages."""

    def put(self, name: str, data: Iterable[bytes]) -> None:
        """Store an object. It appears complete or not at all; an exception of `data` propagates."""

    def create(self, name: str, data: bytes) -> None:
        """Store an object if none has this name. Otherwise raise ObjectExists."""

    def read(self, name: str, size: int) -> Iterator[bytes]:
        """Yield the first `size` bytes of an object in parts. Raise ObjectMissing."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of the objects below a folder, by their names, which include it."""

    def top_names(self) -> list[str]:
        """Return the first parts of all names, sorted."""

    def delete(self, names: list[str]) -> None:
        """Delete objects. A missing object is no error."""


def folder_of(url: str) -> Path | None:
    """Return the folder of a `file://` URL, None for other URLs. Raise StoreUrlWrong."""
    parts = urlsplit(url)
    if parts.scheme.lower() != "file":
        return None
    if parts.netloc not in ("", "localhost") or parts.path in ("", "/"):
        raise StoreUrlWrong(url, f"a folder is {SCHEMES['file']}, with three slashes")
    return Path(unquote(parts.path))


def open_store(url: str, *, make: bool = False) -> ObjectStore:
    """Return the store at a URL. With `make`, create the folder of a `file://` URL. No request is
    made. obstore reads credentials, region and endpoint from the environment.

    Raise StoreUrlWrong, ObstoreMissing or StoreFailed; OSError propagates."""
    _check_url(url)
    folder = folder_of(url)
    try:
        import obstore.store as stores
    except ImportError as error:
        raise ObstoreMissing(url) from error
    if folder is not None:
        if not make and not folder.is_dir():
            raise ObjectMissing(url, "there is no such folder")
        folder.mkdir(parents=True, exist_ok=True)
        return ObstoreStore(stores.LocalStore(str(folder)), url)
    with _translated(url):
        client_options: dict[str, object] = {"timeout": _REQUEST_TIMEOUT}
        # These options replace the ones that obstore reads from the environment.
        scheme = urlsplit(url).scheme.lower()
        if os.environ.get(_ALLOW_HTTP.get(scheme, ""), "").lower() in ("1", "true"):
            client_options["allow_http"] = True
        return ObstoreStore(stores.from_url(url, client_options=client_options), url)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        has_password = parts.password is not None
    except ValueError as error:
        raise StoreUrlWrong(url, str(error)) from error
    scheme = parts.scheme.lower()
    if has_password:
        safe = url.replace(parts.netloc, "...@" + parts.netloc.rpartition("@")[2])
        raise StoreUrlWrong(safe, "give credentials in the environment, not in the URL")
    if scheme not in SCHEMES:
        known = ", ".join(sorted(SCHEMES))
        raise StoreUrlWrong(url, f"the scheme {scheme!r} is not known; use one of {known}")
    if parts.query or parts.fragment:
        raise StoreUrlWrong(url, "a URL of a backup has no '?' and no '#'")
    if scheme != "file" and not parts.netloc:
        raise StoreUrlWrong(url, f"it names no bucket; use {SCHEMES[scheme]}")


class ObstoreStore:
    """An ObjectStore over a store of obstore, for example `obstore.store.MemoryStore()`."""

    def __init__(self, store: Any, where: str) -> None:
        import obstore

        self.where = where
        self._store = store
        self._obstore = obstore

    def put(self, name: str, data: Iterable[bytes]) -> None:
        chunks = iter(data)
        first = b""
        for chunk in chunks:
            first += chunk
            if len(first) >= PART_BYTES:
                break
        if len(first) < PART_BYTES:  # one request instead of three
            self._call(name, self._obstore.put, first, use_multipart=False)
            return
        self._call(
            *(name, self._obstore.put, _chain(first, chunks)),
            use_multipart=True,
            chunk_size=PART_BYTES,
            max_concurrency=_PARTS_AT_ONCE,
        )

    def create(self, name: str, data: bytes) -> None:
        self._call(name, self._obstore.put, data, mode="create")

    def read(self, name: str, size: int) -> Iterator[bytes]:
        for start in range(0, size, PART_BYTES):
            length = min(PART_BYTES, size - start)
            # A range is a request of its own, which the library retries.
            yield bytes(self._call(name, self._obstore.get_range, start=start, length=length))

    def sizes(self, folder: str) -> dict[str, int]:
        with _translated(self.where):
            pages = self._obstore.list(self._store, f"{folder}/")
            return {entry["path"]: entry["size"] for page in pages for entry in page}

    def top_names(self) -> list[str]:
        with _translated(self.where):
            found = self._obstore.list_with_delimiter(self._store)
            return sorted([*found["common_prefixes"], *(each["path"] for each in found["objects"])])

    def delete(self, names: list[str]) -> None:
        for name in names:
            try:
                self._call(name, self._obstore.delete)
            except ObjectMissing:
                continue

    def _call(self, name: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with _translated(f"{self.where.rstrip('/')}/{name}"):
            return method(self._store, name, *args, **options)


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


@contextmanager
def _translated(where: str) -> Iterator[None]:
    """Translate the errors of obstore. An error that the uploaded data raised propagates."""
    from obstore import exceptions

    try:
        yield
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise AccessDenied(where, _reason(error)) from error
    except exceptions.AlreadyExistsError as error:
        raise ObjectExists(where, "it exists already") from error
    except (FileNotFoundError, exceptions.NotFoundError) as error:
        raise ObjectMissing(where, _reason(error)) from error
    except (exceptions.BaseError, NotImplementedError) as error:
        reason = _reason(error)
        # A list that is not permitted has no class of its own.
        is_denied = re.search(r"status code: (401|403)\b", reason) is not None
        if _METADATA_SERVICE in reason:
            reason, is_denied = f"no credentials are in the environment ({reason})", True
        raise (AccessDenied if is_denied else StoreFailed)(where, reason) from error


def _reason(error: Exception) -> str:
    """Return an error of obstore as one line, without the queries of URLs, which may be secret."""
    text = " ".join(str(error).partition("\n\nDebug source")[0].split())
    return re.sub(r"\?\S+", "?...", text)[:_MAX_REASON]
