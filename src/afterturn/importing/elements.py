"""The elements of a JSON file one by one, however large the file is.

A file is one list, or objects and lists one after the other (JSON lines, or a single document).
What stands between an element's brackets is found without reading it as JSON, so an element that
is broken inside costs only itself; the next one is read as if nothing had been.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ELEMENT_CHARACTERS_MAX: Final = 16 << 20
"""A larger element is passed over: reading it would need many times its size."""

_CHUNK_BYTES: Final = 1 << 18
_BRACKET_OR_QUOTE: Final = re.compile(r'["{}\[\]]')
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_INSIDE_STRING: Final = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_SCALAR: Final = re.compile(r"[^\s,\[\]{}]+")
_BLANK: Final = re.compile(r"[\s,]*")
_NOT_UTF_8: Final = re.compile("[\udc80-\udcff]")
"""What bytes that are no UTF-8 become in the decoder."""
_OPENING: Final = {"}": ord("{"), "]": ord("[")}
_TOO_LARGE: Final = f"more than {ELEMENT_CHARACTERS_MAX >> 20} MiB in one piece"


@dataclass(frozen=True, slots=True)
class Element:
    """One element, or what is wrong with it.

    `number` counts the elements of the file from 1. `row` is the number of the top-level list that
    it stands in, 0 for none. `place` is where it begins, or where its JSON is broken.
    """

    number: int
    row: int
    place: str
    value: Any = None
    defect: str = ""


class _EndOfFile(Exception):
    pass


def elements(file: Path) -> Iterator[Element]:
    """The elements of a file; what cannot be read at all is a last element with its defect."""
    try:
        with file.open("rb") as stream:
            yield from _Scanner(stream).elements()
    except OSError as error:
        yield Element(0, 0, "", defect=f"cannot be read: {error.strerror}")


class _Scanner:
    """Holds the part of the file that belongs to the element at hand, and no more."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._text = ""
        self._at = 0
        self._line = 1
        self._column = 1
        self._number = 0
        self._row = 0
        self._is_cut_off = False

    def elements(self) -> Iterator[Element]:
        in_list = False
        rows = 0
        while self._next():
            character = self._text[self._at]
            if character == "]" and in_list:
                in_list = False
                self._row = 0
                self._skip(1)
            elif character == "[" and not in_list:
                in_list = True
                rows += 1
                self._row = rows
                self._skip(1)
            else:
                yield self._element(character)
        if in_list and not self._is_cut_off:
            yield self._broken("the list is not closed: the file ends in the middle")

    def _next(self) -> bool:
        """Go to where an element or the end of a list begins; False at the end of the file."""
        while True:
            blank = _BLANK.match(self._text, self._at)
            assert blank is not None  # noqa: S101 - it matches the empty text, too
            self._skip(blank.end() - self._at)
            if self._at < len(self._text):
                return True
            if not self._more():
                return False

    def _element(self, character: str) -> Element:
        self._number += 1
        place = self._place(self._at)
        try:
            end = self._closed() if character in "{[" else self._scalar(character)
        except _EndOfFile:
            self._is_cut_off = True
            self._skip(len(self._text) - self._at)
            return self._broken("not JSON: the file ends in the middle of it", place)
        if end is None:
            return self._broken(_TOO_LARGE, place)
        element = self._parsed(self._text[self._at : end], place)
        self._skip(max(end - self._at, 1))
        return element

    def _parsed(self, text: str, place: str) -> Element:
        foreign = _NOT_UTF_8.search(text)
        if foreign is not None:
            return self._broken("not UTF-8", self._place(self._at + foreign.start()))
        try:
            return Element(self._number, self._row, place, value=json.loads(text))
        except json.JSONDecodeError as error:
            return self._broken(f"not JSON: {error.msg}", self._place(self._at + error.pos))
        except RecursionError:
            return self._broken("nested too deeply", place)
        except ValueError:  # a number of more digits than Python reads
            return self._broken("not JSON", place)

    def _closed(self) -> int | None:
        """Where the bracket that opens here is closed; None for more than is held at once.

        A closing bracket also closes what was left open inside of it: the JSON reader says so, and
        the element ends where it was meant to.
        """
        open_brackets = bytearray()
        passed = 0
        in_string = False
        at = self._at
        while True:
            while at < len(self._text):
                if in_string:
                    inside = _INSIDE_STRING.match(self._text, at)
                    assert inside is not None  # noqa: S101 - it matches the empty text, too
                    at = inside.end()
                    if not self._text.startswith('"', at):
                        break  # at the end, or before a backslash whose next character is missing
                    at += 1
                    in_string = False
                    continue
                found = _BRACKET_OR_QUOTE.search(self._text, at)
                at = found.end() if found else len(self._text)
                if found is None:
                    break
                if found[0] == '"':
                    in_string = True
                elif found[0] in "{[":
                    open_brackets.append(ord(found[0]))
                else:
                    opening = open_brackets.rfind(_OPENING[found[0]])
                    if opening >= 0:
                        del open_brackets[opening:]
                    if not open_brackets:
                        if passed + at - self._at <= ELEMENT_CHARACTERS_MAX:
                            return at
                        self._skip(at - self._at)
                        return None
            if at - self._at > ELEMENT_CHARACTERS_MAX or passed:
                passed += at - self._at
                self._skip(at - self._at)
            gone = at - self._at
            if not self._more():
                raise _EndOfFile
            at = self._at + gone

    def _scalar(self, character: str) -> int:
        """Where a string, number or word ends."""
        pattern = _STRING if character == '"' else _SCALAR
        while True:
            found = pattern.match(self._text, self._at)
            if found is not None and found.end() < len(self._text):
                return found.end()
            if found is None and character != '"':
                return self._at + 1  # a bracket that closes nothing
            if len(self._text) - self._at > ELEMENT_CHARACTERS_MAX:
                raise _EndOfFile
            if not self._more():
                if found is None:
                    raise _EndOfFile
                return found.end()

    def _more(self) -> bool:
        """Read on; False at the end of the file."""
        while data := self._stream.read(_CHUNK_BYTES):
            if self._take(self._decoder.decode(data)):
                return True
        return self._take(self._decoder.decode(b"", final=True))

    def _take(self, text: str) -> bool:
        if text:
            self._text = self._text[self._at :] + text
            self._at = 0
        return bool(text)

    def _skip(self, characters: int) -> None:
        end = self._at + characters
        lines = self._text.count("\n", self._at, end)
        if lines:
            self._line += lines
            self._column = end - self._text.rfind("\n", self._at, end)
        else:
            self._column += characters
        self._at = end

    def _place(self, at: int) -> str:
        lines = self._text.count("\n", self._at, at)
        column = (
            at - self._text.rfind("\n", self._at, at) if lines else self._column + at - self._at
        )
        return f"line {self._line + lines}, column {column}"

    def _broken(self, reason: str, place: str = "") -> Element:
        return Element(self._number, self._row, place or self._place(self._at), defect=reason)
