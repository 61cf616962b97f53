"""The cache holds what was used last, within its bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from afterturn.retrieval.cache import IDLE_SECONDS_MAX, RetrievalCache
from afterturn.retrieval.entries import Entry

from .building import entry, row


def held(cache: RetrievalCache, path: str, owner: str = "o") -> Entry | None:
    return cache.get(owner, [path])[0]


def of(path: str, text: str = "tea") -> Entry:
    return entry([row("a", text, path=path)])


def test_the_least_recently_used_goes_first() -> None:
    """Being asked for counts as use."""
    one = of("v1/a/").nbytes
    cache = RetrievalCache(3 * one)
    for path in ("v1/a/", "v1/b/", "v1/c/"):
        cache.put("o", of(path))
    assert held(cache, "v1/a/") is not None
    cache.put("o", of("v1/d/"))
    assert held(cache, "v1/b/") is None
    assert held(cache, "v1/a/") is not None
    assert cache.nbytes <= 3 * one


def test_what_nobody_asks_for_goes_after_a_while() -> None:
    """At the next use of any path, so that erased text does not stay in memory."""
    now = [0.0]
    cache = RetrievalCache(1 << 20, clock=lambda: now[0])
    for path in ("v1/a/", "v1/b/"):
        cache.put("o", of(path))
    now[0] = IDLE_SECONDS_MAX
    assert held(cache, "v1/a/") is not None
    now[0] += 1
    assert held(cache, "v1/a/") is not None
    assert len(cache) == 1
    assert cache.nbytes == of("v1/a/").nbytes
    assert held(cache, "v1/b/") is None


def test_owners_do_not_see_each_others_entries() -> None:
    """Two databases, or two embedders, may share one cache."""
    cache = RetrievalCache(1 << 20)
    cache.put("o", of("v1/a/"))
    assert held(cache, "v1/a/", "other") is None


def test_an_entry_larger_than_the_cache_is_not_kept() -> None:
    """The bound holds, and the reader is told."""
    cache = RetrievalCache(10)
    assert not cache.put("o", of("v1/alice/", "secret"))
    assert (len(cache), cache.nbytes) == (0, 0)
    roomy = RetrievalCache(1 << 20)
    assert roomy.put("o", of("v1/alice/", "secret"))


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.booleans()), max_size=40),
)
def test_bytes_are_counted_exactly(steps: list[tuple[str, int, bool]]) -> None:
    """After any puts and discards the count is the sum of what is held, within the bound."""
    bound = of("v1/a/").nbytes * 2
    cache = RetrievalCache(bound)
    for name, size, keep in steps:
        if keep:
            cache.put("o", of(f"v1/{name}/", "tea " * size))
        else:
            cache.discard("o", f"v1/{name}/")
        entries = [e for n in "abcd" if (e := held(cache, f"v1/{n}/")) is not None]
        assert cache.nbytes == sum(e.nbytes for e in entries) <= bound
        assert len(cache) == len(entries)
    cache.clear()
    assert (len(cache), cache.nbytes) == (0, 0)
