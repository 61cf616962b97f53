"""Scopes: what a segment may be, the path as its only spelling, and who covers whom."""

from __future__ import annotations

import itertools
import pickle
import unicodedata
from enum import StrEnum
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from afterturn.database import Database
from afterturn.errors import MemoryContractError
from afterturn.scope import (
    MAX_DEPTH,
    PATH_BYTES_MAX,
    SEGMENT_CHARACTERS_MAX,
    MemoryScope,
    covering_paths,
    scope_from_command_line,
    scope_from_path,
    scope_from_stored_path,
)
from tests.foundation.scopes import related_scopes, scopes, segments

with_database = hypothesis_settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@given(scopes)
def test_a_path_leads_back_to_its_scope(scope: MemoryScope) -> None:
    """`scope_from_path` is the inverse of `.path`, for every text a segment may hold."""
    assert scope_from_path(scope.path) == scope
    assert scope_from_path(scope.path).segments == scope.segments
    assert scope_from_stored_path(scope.stored_path) == scope
    assert scope_from_command_line(scope.path) == scope
    assert scope.path.isascii()
    assert len(scope.path.split("/")) == scope.depth + 1


@given(scopes, scopes)
def test_two_scopes_are_equal_exactly_when_their_paths_are(
    one: MemoryScope, other: MemoryScope
) -> None:
    """No two scopes share a path, and equal ones share a hash."""
    assert (one == other) == (one.path == other.path)
    same = MemoryScope.of(*one.segments)
    assert same == one
    assert hash(same) == hash(one)
    assert one != one.path


@given(st.text(max_size=40))
def test_what_is_read_as_a_path_is_its_only_spelling(text: str) -> None:
    """Any text at all: either it is refused, or it is the very path of the scope it gives."""
    path = "v1/" + text
    try:
        scope = scope_from_path(path)
    except MemoryContractError:
        return
    assert scope.path == path


@given(scopes, st.data())
def test_another_spelling_of_a_path_is_refused(scope: MemoryScope, data: st.DataObject) -> None:
    """Encoding a character that needs none still decodes to the scope, and is refused."""
    plain = [at for at, character in enumerate(scope.path) if at >= 3 and character.isalnum()]
    encoded = {at for at, c in enumerate(scope.path) if c == "%"}
    free = [at for at in plain if not {at - 1, at - 2} & encoded]
    assume(free)
    at = data.draw(st.sampled_from(free))
    respelt = scope.path[:at] + f"%{ord(scope.path[at]):02X}" + scope.path[at + 1 :]
    assert scope_from_command_line(respelt) == scope
    with pytest.raises(MemoryContractError, match="not canonical"):
        scope_from_path(respelt)


@pytest.mark.parametrize(
    "path",
    [
        "v1/a%2fb",  # lower-case hexadecimal
        "v1/a b",  # a space that is not encoded
        "v1/日本",  # text that is not encoded
        "v1/%41cme",  # encoded without need
        "v1/e%CC%81",  # decomposed: its NFC has another path
        "v1/a//b",
        "v1//a",
        "v1/a/",
        "v1/",
        "v1",
        "",
        "/v1/a",
        "v2/a",
        "v1a",
        "V1/a",
        "acme/alice",
        "v1/.",
        "v1/a/../b",
        "v1/a?b",
        "v1/a#b",
        "v1/a+b",
        "v1/%zz",
        "v1/%",
        "v1/%E6",  # half a character
        "v1/%ff",
        "v1/%00",
        "v1/%C2%85",  # a C1 control character
        "v1/%ED%A0%80",  # a surrogate in UTF-8
        "v1/\ud800",
        "v1/a\n",
        " v1/a",
        "v1/" + "/".join("abcdefghi"),
        "v1/" + "a" * 201,
    ],
)
def test_a_path_that_is_not_canonical_is_refused(path: str) -> None:
    """By `scope_from_path` and `covering_paths` alike."""
    with pytest.raises(MemoryContractError):
        scope_from_path(path)
    with pytest.raises(MemoryContractError):
        covering_paths(path)


@pytest.mark.parametrize("path", [b"v1/a", 5, None])
def test_a_path_that_is_not_text_is_refused(path: object) -> None:
    """With the value shown, since a path is no memory text."""
    with pytest.raises(MemoryContractError, match="Not a scope path"):
        scope_from_path(path)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize(
    "segment",
    [
        ".",
        "..",
        "/",
        "%",
        "%2F",
        " ",
        "u%",
        "a/b",
        "日本語",
        "👩‍👩‍👧‍👦",
        "Ærøskøbing",
        "v1",
        "\u2028",
        "?#&=",
    ],
)
def test_any_text_may_be_a_segment(segment: str) -> None:
    """It is encoded, so it neither splits the path nor climbs in it."""
    scope = MemoryScope.of("acme", segment, "chat")
    assert scope.segments == ("acme", segment, "chat")
    assert scope.path.count("/") == 3
    assert "/../" not in scope.stored_path
    assert "/./" not in scope.stored_path
    assert scope_from_path(scope.path) == scope


def test_segments_are_normalised() -> None:
    """Composed and decomposed spellings of a name are one scope."""
    composed, decomposed = "é", unicodedata.normalize("NFD", "é")
    assert composed != decomposed
    assert MemoryScope.of(decomposed) == MemoryScope.of(composed)
    assert MemoryScope.of("a", decomposed).covers(MemoryScope.of("a", composed, "b"))


def test_a_scope_has_one_to_eight_segments() -> None:
    """Eight are fine, none and nine are refused with the numbers."""
    assert MemoryScope.of(*"abcdefgh").depth == MAX_DEPTH == 8
    with pytest.raises(MemoryContractError, match="at least one segment"):
        MemoryScope.of()
    with pytest.raises(MemoryContractError, match="9 segments, at most 8"):
        MemoryScope.of(*"abcdefghi")
    with pytest.raises(MemoryContractError, match="too deep"):
        MemoryScope.of(*"abcdefgh").child("i")


def test_a_segment_has_up_to_200_characters() -> None:
    """Counted after normalisation; the error says which one, how many, and the limit."""
    assert MemoryScope.of("a" * SEGMENT_CHARACTERS_MAX).segments[0] == "a" * 200
    assert MemoryScope.of("e\u0301" * 200).segments == ("é" * 200,)
    with pytest.raises(MemoryContractError, match=r"segment 2, 'bbb.*201 characters, at most 200"):
        MemoryScope.of("a", "b" * 201)
    with pytest.raises(MemoryContractError, match="segment 3"):
        MemoryScope.of("a", "b", "")


def test_an_encoded_path_has_up_to_2000_bytes() -> None:
    """The limit is that of an index key: encoded bytes, whatever the characters."""
    widest = "語" * 200  # nine bytes each when encoded
    filler = PATH_BYTES_MAX - len(MemoryScope.of(widest).path) - 1
    longest = MemoryScope.of(widest, "a" * filler)
    assert len(longest.path) == PATH_BYTES_MAX
    assert scope_from_path(longest.path) == longest
    with pytest.raises(MemoryContractError, match="2001 bytes, at most 2000"):
        MemoryScope.of(widest, "a" * (filler + 1))
    with pytest.raises(MemoryContractError, match="too long"):
        scope_from_path(longest.path + "a")


@pytest.mark.parametrize("character", ["\x00", "\n", "\x1f", "\x7f", "\x85", "\ud83d"])
def test_control_characters_and_surrogates_are_refused(character: str) -> None:
    """The error names the segment and the character."""
    with pytest.raises(MemoryContractError, match=rf"segment 2.*U\+{ord(character):04X}"):
        MemoryScope.of("acme", f"al{character}ice")


@pytest.mark.parametrize("segment", [5, None, b"acme", ("a",)])
def test_a_segment_that_is_not_text_is_refused(segment: object) -> None:
    """A number is not quietly written out."""
    with pytest.raises(MemoryContractError, match=f"segment 1 is {type(segment).__name__}"):
        MemoryScope.of(segment)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("value", ["acme", {"a": 1}, None, 5, {"a"}])
def test_segments_that_are_no_sequence_are_refused(value: object) -> None:
    """A text is not taken apart into its characters."""
    with pytest.raises(MemoryContractError):
        MemoryScope(segments=value)


def test_an_enumeration_of_texts_may_name_segments() -> None:
    """Its path is that of the plain text."""

    class Tenant(StrEnum):
        ACME = "acme"

    assert MemoryScope.of(Tenant.ACME, "a").path == MemoryScope.of("acme", "a").path == "v1/acme/a"


@given(related_scopes, related_scopes)
def test_covering_is_by_complete_segment(one: MemoryScope, other: MemoryScope) -> None:
    """A scope covers itself and what lies under it; names that only begin alike do not count."""
    expected = other.segments[: one.depth] == one.segments
    assert one.covers(other) is expected
    assert (one.path in covering_paths(other.path)) is expected
    assert other.stored_path.startswith(one.stored_path) is expected


def test_names_that_look_alike_do_not_cover_each_other() -> None:
    """`acme/al` is not an ancestor of `acme/alice`, nor `chat-4` of `chat-42`."""
    for short, long in [("al", "alice"), ("chat-4", "chat-42"), ("u", "u%"), ("a", "a/b")]:
        one, other = MemoryScope.of("acme", short), MemoryScope.of("acme", long, "x")
        assert not one.covers(other)
        assert one.path not in covering_paths(other.path)
    assert not MemoryScope.of("a", "b").covers(MemoryScope.of("a"))


@given(scopes)
def test_covering_paths_are_the_ancestors_and_the_scope_root_first(scope: MemoryScope) -> None:
    """They agree with `ancestor`, `root`, `child` and `covers`."""
    paths = covering_paths(scope.path)
    chain = [scope.ancestor(level) for level in range(1, scope.depth + 1)]
    assert paths == tuple(each.path for each in chain)
    assert chain[0] == scope.root
    assert chain[-1] == scope
    for upper, lower in itertools.pairwise(chain):
        assert upper.child(lower.segments[-1]) == lower
        assert upper.covers(lower)
        assert not lower.covers(upper)


@pytest.mark.parametrize("level", [0, -1, 3])
def test_there_is_no_ancestor_beyond_the_scope(level: int) -> None:
    """The error shows the level asked for and the depth."""
    with pytest.raises(MemoryContractError, match=f"level {level}, the scope has 2"):
        MemoryScope.of("a", "b").ancestor(level)


def test_a_scope_that_is_copied_or_pickled_keeps_its_path() -> None:
    """Also after its path was read once, and with other segments in the copy."""
    scope = MemoryScope.of("acme", "alice")
    assert scope.path == "v1/acme/alice"
    assert pickle.loads(pickle.dumps(scope)) == scope  # noqa: S301 - our own
    assert pickle.loads(pickle.dumps(scope)).path == scope.path  # noqa: S301
    assert MemoryScope.model_validate_json(scope.model_dump_json()) == scope
    other = scope.model_copy(update={"segments": ("acme", "bob")})
    assert other.path == "v1/acme/bob"
    with pytest.raises(ValueError, match="frozen"):
        setattr(scope, "segments", ("x",))  # noqa: B010 - the type checker refuses it, too


@pytest.mark.parametrize("written", ["acme/%zz", "acme/50%", "acme/%2", "%g0"])
def test_a_broken_escape_is_refused(written: str) -> None:
    """It would name another scope than the one that was meant."""
    with pytest.raises(MemoryContractError, match="%25"):
        scope_from_command_line(written)
    with pytest.raises(MemoryContractError):
        scope_from_path(f"v1/{written}")


@given(st.lists(segments, min_size=1, max_size=3))
def test_the_command_line_takes_segments_encoded_as_in_a_url(parts: list[str]) -> None:
    """`acme/alice`; with or without the version, upper or lower case, encoded more than needed."""
    scope = MemoryScope.of(*parts)
    written = "/".join(quote(each, safe="").replace(".", "%2e") for each in parts)
    assert scope_from_command_line(written) == scope
    assert scope_from_command_line("v1/" + written.replace("%2F", "%2f")) == scope


@with_database
@given(scope=scopes)
async def test_postgresql_sees_the_same_covering_paths(
    database: Database, scope: MemoryScope
) -> None:
    """`afterturn.covering` gives `covering_paths`, root first, with the trailing slash."""
    async with database.connection() as connection:
        covering = await connection.fetchval("select afterturn.covering($1)", scope.stored_path)
    assert [each.removesuffix("/") for each in covering] == list(covering_paths(scope.path))


@with_database
@given(one=related_scopes, other=related_scopes)
async def test_everything_under_a_scope_is_one_range(
    database: Database, one: MemoryScope, other: MemoryScope
) -> None:
    """In collation C, `>= path and < under_end(path)` holds exactly for what the scope covers."""
    async with database.connection() as connection:
        inside = await connection.fetchval(
            """
            select p.path >= $1 and p.path < afterturn.under_end($1)
            from (select $2::text collate "C" as path) p
            """,
            one.stored_path,
            other.stored_path,
        )
    assert inside is one.covers(other)
