"""The picture in ARCHITECTURE.md agrees with the imports."""

from tests.support.tree import picture
from tests.support.tree.layers import WITHIN, sub_packages


def test_the_page_has_the_current_picture() -> None:
    text = picture.PAGE.read_text("utf-8")
    assert text == picture.on_page(text), "run `make docs`"


def test_every_sub_package_has_its_line() -> None:
    lines = picture.table()
    for package in WITHIN:
        for each in sub_packages(package):
            folder = f"{package}.{each}".replace(".", "/")
            assert [line for line in lines if line.startswith(f"| `{folder}/` | ")], folder
