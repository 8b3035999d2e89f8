"""Modules under their former names: programs import them, and pickles name them."""

import importlib
import pickle
from types import ModuleType

import pytest

import holdfast.client.read.message
import holdfast.commitlog.format.batch
from holdfast.client import Message


@pytest.mark.parametrize(
    ("former", "module"),
    [
        ("holdfast.commitlog.batch", holdfast.commitlog.format.batch),
        ("holdfast.client.message", holdfast.client.read.message),
    ],
)
def test_a_former_name_has_every_public_name(former: str, module: ModuleType) -> None:
    own = {
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    }
    assert own
    for name in own:
        assert getattr(importlib.import_module(former), name) is getattr(module, name)


def test_a_pickle_with_the_former_name_of_a_message_is_read() -> None:
    found = pickle.loads(b"choldfast.client.message\nMessage\n.")
    assert found is Message
