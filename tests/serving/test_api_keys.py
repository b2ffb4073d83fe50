"""API keys: where they are read, and who they let in."""

import pytest

from axcore.errors import ConfigError
from axcore.serving import ApiError, ApiKeys, read_api_keys

KEY, OTHER = "key-of-somebody", "key-of-another"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# of the team\n{KEY}\n\n")
    path.chmod(0o600)
    return path


def test_each_key_of_the_file_and_of_the_environment_lets_in(file):
    keys = read_api_keys(str(file), {"AXCORE_API_KEYS": f"{OTHER}, third-key"})
    for key in (KEY, OTHER, "third-key"):
        keys.check(f"Bearer {key}")
        keys.check(f"bearer {key}")


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "missing_api_key"),
        ("", "invalid_api_key"),
        (f"Bearer {KEY}x", "invalid_api_key"),
        (f"Basic {KEY}", "invalid_api_key"),
        ("Bearer # of the team", "invalid_api_key"),
        ("Bearer \xff", "invalid_api_key"),
    ],
)
def test_anything_else_is_refused(file, header, code):
    with pytest.raises(ApiError) as raised:
        read_api_keys(str(file), {}).check(header)
    assert (raised.value.status, raised.value.code) == (401, code)
    assert raised.value.headers == {"www-authenticate": "Bearer"}


def test_without_keys_everybody_may_ask():
    ApiKeys().check(None)
    assert not read_api_keys(None, {})


def test_a_file_that_others_may_read_is_refused(file):
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"others may read .*\n.*\n.*chmod 600"):
        read_api_keys(str(file), {})


@pytest.mark.parametrize("text", ["", "# only this\n"])
def test_a_file_without_a_key_is_refused(file, text):
    file.write_text(text)
    with pytest.raises(ConfigError, match="contains no API key"):
        read_api_keys(str(file), {})


def test_a_key_that_is_short_or_cannot_be_sent_is_refused():
    for key in ("short", "with a space in it", "schlüssel-von-jemand"):
        with pytest.raises(ConfigError, match="expected 8 or more, of ASCII"):
            ApiKeys((key,))
