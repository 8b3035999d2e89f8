"""The console's files, and what the root of the broker answers."""

import re

import pytest

from holdfast.http_api.app import BrokerStatus
from holdfast.http_api.config import ConsoleConfig
from holdfast.http_api.console.files import FOLDER, page_files
from tests.support.clients.tokens import let_in
from tests.support.servers.api_server import Api, running_api

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


async def test_a_browser_is_sent_to_the_console_and_curl_gets_text(api: Api) -> None:
    async with api.session.get(
        api.url, headers={"Accept": BROWSER}, allow_redirects=False
    ) as reply:
        assert (reply.status, reply.headers["Location"]) == (303, "console/")
    answer = await api.get("/")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert len(answer.body.decode().splitlines()) == 3
    assert b"/console/" in answer.body
    async with api.session.get(f"{api.url}/console", allow_redirects=False) as reply:
        assert (reply.status, reply.headers["Location"]) == (303, "console/")


async def test_every_file_is_served_under_a_strict_policy(api: Api) -> None:
    for name, file in page_files().items():
        answer = await api.get(f"/console/{name}")
        assert (answer.status, answer.body) == (200, file.content), name
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        again = await api.get(f"/console/{name}", If_None_Match=answer.headers["ETag"])
        assert (again.status, again.body) == (304, b"")
    for missing in ("x", "views/x.js", "..%2fapi.js", "views/", "%2e%2e/files.py", "files.py"):
        assert (await api.get(f"/console/{missing}")).status == 404, missing


def test_the_page_has_no_inline_code_and_no_other_origin() -> None:
    page = (FOLDER / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page)
    for path in FOLDER.rglob("*.js"):
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(|new Function", text)
        imported = re.findall(r"(?:from|import) \"([^\"]+)\"", text)
        assert all(each.startswith((".", "..")) for each in imported), path
        assert not re.search(r"https?://(?!www\.w3\.org)", text), path


async def test_the_files_need_no_token_and_no_ready_broker(api: Api) -> None:
    let_in(api, "operate")
    api.status = BrokerStatus("recovering")
    for path in ("/", "/console/", "/console/console.js", "/console/settings.json"):
        for site in ("none", "same-origin", "cross-site"):
            answer = await api.get(path, Sec_Fetch_Site=site, Accept="*/*")
            assert answer.status == 200, (path, site)


async def test_a_link_of_another_site_opens_the_console_without_authentication(api: Api) -> None:
    assert (await api.get("/console/", Sec_Fetch_Site="cross-site")).status == 200
    assert (await api.get("/v1/topics", Sec_Fetch_Site="cross-site")).status == 403


@pytest.mark.parametrize("writable", [False, True])
async def test_the_page_learns_whether_it_may_write(api: Api, writable: bool) -> None:
    api.context.http.console = ConsoleConfig(writable=writable)
    assert (await api.get("/console/settings.json")).json() == {"writable": writable}


async def test_nothing_is_served_if_the_console_is_off(api: Api) -> None:
    api.context.http.console = ConsoleConfig(enabled=False)
    for path in ("/console", "/console/", "/console/api.js", "/console/settings.json"):
        assert (await api.get(path)).problem == "not-found"
    answer = await api.get("/", Accept=BROWSER)
    assert answer.status == 200
    assert b"/console/" not in answer.body


async def test_the_files_count_against_the_rate_limits() -> None:
    async with running_api(max_requests_per_s_per_client=1) as api:
        statuses = [(await api.get("/console/console.js")).status for _ in range(20)]
        assert 429 in statuses
        assert (await api.get("/healthz")).status == 200
