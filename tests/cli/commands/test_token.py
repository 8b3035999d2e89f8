import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.exits import ExitCode
from holdfast.cli.main import main
from holdfast.http_api.access.token_file import TokenFile
from holdfast.http_api.access.tokens import Tokens
from tests.cli.conftest import lines


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def run(*arguments: object, **environ: str) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments], env=environ)


def create(data_dir: Path, *arguments: str) -> dict[str, object]:
    result = run("token", "create", "--data-dir", data_dir, *arguments)
    assert result.exit_code == 0, result.output
    made: dict[str, object] = json.loads(result.stdout)
    return made


def tokens(data_dir: Path) -> Tokens:
    return Tokens(TokenFile(data_dir).read().content.tokens)


def test_a_token_is_printed_once_and_listed_without_its_secret(data_dir: Path) -> None:
    made = create(data_dir, "--name", "billing", "--allow", "consume:orders.:billing-")
    text = str(made["token"])
    found = tokens(data_dir).find(text)
    assert found is not None
    assert found[0].token_id == made["token_id"]
    listed = run("token", "list", "--data-dir", data_dir)
    assert json.loads(listed.stdout) == {each: made[each] for each in made if each != "token"}
    assert text.partition(".")[2] not in listed.output


def test_a_revoked_token_is_gone(data_dir: Path) -> None:
    one, two = create(data_dir, "--allow", "all"), create(data_dir, "--allow", "operate")
    assert run("token", "revoke", "--data-dir", data_dir, one["token_id"]).exit_code == 0
    assert [each.token_id for each in tokens(data_dir).all] == [two["token_id"]]
    again = run("token", "revoke", "--data-dir", data_dir, one["token_id"])
    assert again.exit_code == ExitCode.NOT_FOUND
    assert "holdfast token list" in again.stderr


def test_a_token_may_go_into_a_file_that_only_its_owner_reads(
    data_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "secret"
    made = create(data_dir, "--allow", "all", "--out", str(out))
    assert "token" not in made
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert tokens(data_dir).find(out.read_text().strip()) is not None
    again = run("token", "create", "--data-dir", data_dir, "--allow", "all", "--out", out)
    assert again.exit_code == ExitCode.CONFLICT
    assert len(tokens(data_dir)) == 1


def test_a_certificate_gets_grants_and_no_token(data_dir: Path) -> None:
    arguments = ("--allow", "operate", "--certificate", "metrics.example")
    made = create(data_dir, *arguments)
    assert (made["certificate"], "token" in made) == ("metrics.example", False)
    assert tokens(data_dir).find_certificate(["metrics.example"]) is not None
    again = run("token", "create", "--data-dir", data_dir, *arguments)
    assert again.exit_code == ExitCode.CONFLICT


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--allow"),
        (["--allow", "read:orders"], "there is no verb 'read'"),
        (["--allow", "consume"], "consume needs topics"),
        (["--allow", "all", "--expires-in", "soon"], "30d"),
        (["--allow", "all", "--expires-in", "0s"], "30d"),
        (["--allow", "all", "--expires-at", "2020-01-01T00:00:00Z"], "is in the past"),
        (["--allow", "all", "--expires-at", "never"], "2026-11-21T10:00:00Z"),
        (["--allow", "all", "--expires-at", "now", "--expires-in", "1d"], "not both"),
        (["--allow", "all", "--name", "x" * 201], "200"),
        (["--allow", "all", "--name", "a\x1b[31m"], "printable"),
        (["--allow", "all", "--certificate", "a", "--out", "f"], "--certificate creates none"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_and_creates_nothing(
    data_dir: Path, arguments: list[str], said: str
) -> None:
    result = run("token", "create", "--data-dir", data_dir, *arguments)
    assert result.exit_code == ExitCode.USAGE, result.output
    assert said in result.stderr
    assert not data_dir.exists()


def test_a_token_of_200_characters_name_is_made(data_dir: Path) -> None:
    assert create(data_dir, "--allow", "all", "--name", "x" * 200)["name"] == "x" * 200


def test_expiry_is_a_time_or_a_while(data_dir: Path) -> None:
    made = create(data_dir, "--allow", "all", "--expires-at", "2999-12-31T00:00:00Z")
    assert made["expires"] == "2999-12-31T00:00:00+00:00"
    create(data_dir, "--allow", "all", "--expires-in", "30d")
    token = tokens(data_dir).all[1]
    assert token.expires_ms == token.created_ms + 30 * 86_400_000


def test_every_change_is_in_the_audit_log_without_the_secret(data_dir: Path) -> None:
    made = create(data_dir, "--allow", "all", "--name", "me")
    run("token", "revoke", "--data-dir", data_dir, made["token_id"])
    text = (data_dir / "access" / "audit.log").read_text()
    events = lines(text)
    assert [(each["act"], each["object"], each["name"]) for each in events] == [
        ("token.create", made["token_id"], "me"),
        ("token.revoke", made["token_id"], "me"),
    ]
    assert all(each["principal"].startswith("user:") for each in events)
    assert str(made["token"]).partition(".")[2] not in text


def test_a_damaged_copy_is_reported_and_repaired(data_dir: Path) -> None:
    create(data_dir, "--allow", "all")
    path = data_dir / "access" / "tokens"
    path.write_bytes(path.read_bytes()[:-3])
    assert "is damaged" in run("token", "list", "--data-dir", data_dir).stderr
    create(data_dir, "--allow", "all")
    assert run("token", "list", "--data-dir", data_dir).stderr == ""


def test_two_damaged_copies_are_refused_with_advice(data_dir: Path) -> None:
    create(data_dir, "--allow", "all")
    for name in ("tokens", "tokens.copy"):
        (data_dir / "access" / name).write_bytes(b"x")
    result = run("token", "create", "--data-dir", data_dir, "--allow", "all")
    assert result.exit_code == ExitCode.REFUSED
    assert "from a backup" in result.stderr


def test_list_of_a_directory_that_is_not_there_is_an_error(data_dir: Path) -> None:
    assert run("token", "list", "--data-dir", data_dir).exit_code == ExitCode.USAGE


# -- the token that a command shows ----------------------------------------------------------


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The tokens with which clients were created."""
    seen: list[str | None] = []

    class Client:
        def __init__(self, url: str, *, token: str | None, **_: object) -> None:
            seen.append(token)
            raise ValueError("seen")

    monkeypatch.setattr("holdfast.client.Client", Client)
    return seen


def test_an_option_goes_before_the_environment(tmp_path: Path, shown: list[str | None]) -> None:
    file = tmp_path / "token"
    file.write_text("of-the-file\n")
    for arguments, environ in (
        ((), {}),
        (("--token", "given"), {}),
        (("--token-file", str(file)), {}),
        ((), {"HOLDFAST_TOKEN": "of-the-environment"}),
        ((), {"HOLDFAST_TOKEN_FILE": str(file)}),
        (("--token", "given"), {"HOLDFAST_TOKEN_FILE": str(file)}),
        (("--token-file", str(file)), {"HOLDFAST_TOKEN": "of-the-environment"}),
    ):
        run("topic", "list", *arguments, **environ)
    assert shown == [
        None, "given", "of-the-file", "of-the-environment", "of-the-file", "given", "of-the-file",
    ]  # fmt: skip


def test_two_tokens_of_the_same_rank_are_refused(tmp_path: Path, shown: list[str | None]) -> None:
    file = tmp_path / "token"
    file.write_text("a")
    both = run("topic", "list", "--token", "b", "--token-file", file)
    assert both.exit_code == ExitCode.USAGE
    assert run("topic", "list", HOLDFAST_TOKEN="b", HOLDFAST_TOKEN_FILE=str(file)).exit_code == 2
    assert shown == []


# O7: `token create > f` wrote a file that `--token-file f` refused.
def test_what_token_create_prints_is_a_token_file(tmp_path: Path, shown: list[str | None]) -> None:
    file = tmp_path / "token"
    made = run("token", "create", "--data-dir", tmp_path / "data", "--allow", "all")
    file.write_text(made.stdout)
    run("topic", "list", "--token-file", file)
    assert shown == [json.loads(made.stdout)["token"]]


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"two words", b"a\nb", b"\xff", b"{", b"{}", b'{"token": 1}', b'{"token": ""}'],
)
def test_a_file_without_one_token_is_refused_and_not_printed(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    result = run("topic", "list", "--token-file", file)
    assert result.exit_code == ExitCode.USAGE
    assert "must contain one token" in result.stderr
    assert "words" not in result.stderr


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    result = run("topic", "list", "--token-file", tmp_path / "none")
    assert result.exit_code == ExitCode.USAGE
    assert "No such file" in result.stderr


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "zé", "a\x00b"])
def test_an_invalid_token_is_refused_and_not_printed(token: str) -> None:
    result = run("topic", "list", "--token", token)
    assert result.exit_code == ExitCode.USAGE
    assert token not in result.output
    assert "words" not in result.output


def test_the_brokers_configuration_does_not_mind_the_clients_variables(tmp_path: Path) -> None:
    result = run("config", "show", HOLDFAST_TOKEN="secret", HOLDFAST_TOKEN_FILE="/secret-file")
    assert result.exit_code == 0, result.output
    assert "secret" not in result.output
