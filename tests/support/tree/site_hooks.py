"""Hooks of mkdocs for the documentation site (mkdocs.yml): pages that are not files of docs/.

The HTTP reference is made from the OpenAPI document that a broker with default settings serves.
"""

import json
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from holdfast import __version__
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.routes import ROUTES
from holdfast.http_api.routing.openapi import openapi_document
from tests.support.tree.site_pages import (
    OUTSIDE,
    decisions,
    http_reference,
    repository_path,
    with_site_links,
)

ROOT = Path(__file__).resolve().parents[3]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    document = openapi_document(ROUTES, HttpConfig(), __version__)
    generated: dict[str, str | bytes] = {
        place: (ROOT / name).read_text("utf-8") for name, place in OUTSIDE.items()
    }
    generated["adr/README.md"] = decisions(
        {path.name: _title(path) for path in (ROOT / "docs" / "adr").glob("*.md")}
    )
    generated["reference/http.md"] = http_reference(json.loads(document))
    generated["reference/openapi.json"] = document
    for place, content in generated.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with links that are right in the site."""
    return with_site_links(markdown, repository_path(page.file.src_uri))


def _title(path: Path) -> str:
    return path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
