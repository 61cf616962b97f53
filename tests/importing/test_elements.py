"""Taking a JSON file apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterturn.importing import elements as module
from afterturn.importing.elements import Element, elements


def _read(tmp_path: Path, content: bytes | str) -> list[Element]:
    file = tmp_path / "file.json"
    file.write_bytes(
        content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    )
    return list(elements(file))


def _values(found: list[Element]) -> list[Any]:
    assert [each.defect for each in found] == [""] * len(found)
    return [each.value for each in found]


@pytest.mark.parametrize(
    ("content", "values", "rows"),
    [
        ('[{"a": 1}, {"b": [2]}]', [{"a": 1}, {"b": [2]}], [1, 1]),
        ('{"a": 1}\n{"b": 2}\n', [{"a": 1}, {"b": 2}], [0, 0]),
        ('{"a": 1}', [{"a": 1}], [0]),
        ('[1, "two", null, true, -3.5e1]', [1, "two", None, True, -35.0], [1] * 5),
        ('[{"a": 1}]\n[{"b": 2}]', [{"a": 1}, {"b": 2}], [1, 2]),
        ("[[1], [2, [3]]]", [[1], [2, [3]]], [1, 1]),
        ("", [], []),
        (" \n", [], []),
        ("[]", [], []),
        ('\ufeff[{"a": 1}]', [{"a": 1}], [1]),
        ('[{"]}": "[{\\"\\\\"}]', [{"]}": '[{"\\'}], [1]),
        ('["\\ud83d", "\\u0000"]', ["\ud83d", "\x00"], [1, 1]),
    ],
)
def test_elements_come_one_by_one(
    tmp_path: Path, content: str, values: list[Any], rows: list[int]
) -> None:
    """Of a list, of lines, of a single document; with the number of the list they stand in."""
    found = _read(tmp_path, content)
    assert _values(found) == values
    assert [each.row for each in found] == rows
    assert [each.number for each in found] == list(range(1, len(values) + 1))


@pytest.mark.parametrize(
    ("content", "places"),
    [
        (b'[{"a": 1},\n {"b": nope},\n {"c": 3}]', {2: ("line 2, column 8", "Expecting value")}),
        (b'{"a": 1}\n{"b" 2}\n{"c": 3}', {2: ("line 2, column 6", "Expecting ':'")}),
        (b'[{"a": 1}, {"b": [1}, {"c": 3}]', {2: ("line 1, column 20", "Expecting ','")}),
        (b'[{"a": 1}, nope, {"c": 3}]', {2: ("line 1, column 12", "Expecting value")}),
        (b'[{"a": 1}, {"b": "x', {2: ("line 1, column 12", "ends in the middle")}),
        (b'[{"a": 1}', {0: ("line 1, column 10", "list is not closed")}),
        (b'[{"a": 1}, {"b": "\xff"}, {"c": 3}]', {2: ("line 1, column 19", "UTF-8")}),
        (b'[{"a": 1}, {"b": "\xf0\x9f"}, {"c": 3}]', {2: ("line 1, column 19", "UTF-8")}),
        (b'[{"a": 1}, "x', {2: ("line 1, column 12", "ends in the middle")}),
        (b'{"a": 1} } {"c": 3}', {2: ("line 1, column 10", "Expecting value")}),
    ],
)
def test_what_is_broken_is_placed_and_costs_only_itself(
    tmp_path: Path, content: bytes, places: dict[int, tuple[str, str]]
) -> None:
    """The good ones before and after it are read."""
    found = _read(tmp_path, content)
    assert found[0].value == {"a": 1}
    broken = [each for each in found if each.defect]
    ((place, reason),) = places.values()
    assert [each.place for each in broken] == [place]
    assert reason in broken[0].defect
    if content.endswith((b"3}]", b"3}")):
        assert found[-1].value == {"c": 3}


def test_nesting_without_end_is_a_defect(tmp_path: Path) -> None:
    """Neither the stack nor the memory is spent on it."""
    (first, *_) = _read(tmp_path, "[" * 200_000)
    assert first.defect
    deep = _read(tmp_path, "[" * 100_000 + "]" * 100_000)
    assert "deeply" in deep[0].defect


def test_a_file_that_cannot_be_opened_is_a_defect(tmp_path: Path) -> None:
    """With the reason of the system."""
    (found,) = elements(tmp_path / "none.json")
    assert found.defect == "cannot be read: No such file or directory"


@pytest.mark.parametrize(
    "large",
    [
        '{"a": "' + "x" * (1 << 20) + '"}',
        '{"a": "' + "\\n" * (1 << 20) + '"}',
        '{"a": [' + "[1], " * (1 << 18) + "0]}",
    ],
    ids=["one string", "escapes", "many values"],
)
def test_an_element_that_is_too_large_is_passed_over(
    tmp_path: Path, large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ones around it are read; one that just fits is read, too."""
    monkeypatch.setattr(module, "ELEMENT_CHARACTERS_MAX", len(large) - 1)
    found = _read(tmp_path, f'[{{"n": 1}}, {large}, {{"n": 3}}]')
    assert [each.value for each in found] == [{"n": 1}, None, {"n": 3}]
    assert "in one piece" in found[1].defect
    assert found[1].place == "line 1, column 12"
    monkeypatch.setattr(module, "ELEMENT_CHARACTERS_MAX", len(large))
    assert _read(tmp_path, f"[{large}]")[0].value == json.loads(large)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    values=st.lists(_JSON, max_size=6),
    as_lines=st.booleans(),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    chunk=st.integers(1, 40),
)
def test_any_file_gives_what_json_gives(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[Any],
    as_lines: bool,
    indent: int | None,
    ascii_only: bool,
    chunk: int,
) -> None:
    """Whatever its layout, and wherever the file happens to be cut while reading."""
    if as_lines:
        values = [{"v": value} for value in values]
        text = "\n".join(json.dumps(v, ensure_ascii=ascii_only) for v in values)
    else:
        text = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_bytes(text.encode("utf-8", "replace"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK_BYTES", chunk)
        found = [each.value for each in elements(file)]
    expected = json.loads(file.read_text("utf-8")) if not as_lines else values
    assert found == json.loads(json.dumps(expected).encode("utf-8", "replace"))


@given(
    content=st.binary(max_size=80) | st.text(alphabet='[]{}",:\\ a1\n', max_size=60).map(str.encode)
)
def test_no_file_makes_it_fail(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Every file ends in elements and defects."""
    file = tmp_path_factory.getbasetemp() / "bytes.json"
    file.write_bytes(content)
    assert all(isinstance(each, Element) for each in elements(file))
