"""The mapping protocol, against a dict."""

import random
from collections.abc import ItemsView, Mapping, MutableMapping

import farindex
import pytest
from conftest import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_agrees_with_a_dict(pool: farindex.Pool, kind: str) -> None:
    index, model = pool.create_index("test", kind), {}
    rng = random.Random(7)
    for step in range(3000):
        key = b"key-%d" % rng.randrange(300)
        value = rng.randbytes(rng.randrange(100))
        match rng.randrange(8):
            case 0 | 1:
                index[key] = model[key] = value
            case 2:
                assert index.get(key, b"none") == model.get(key, b"none")
            case 3:
                assert index.pop(key, None) == model.pop(key, None)
            case 4:
                assert index.setdefault(key, value) == model.setdefault(key, value)
            case 5:
                assert (key in index) == (key in model)
            case 6:
                assert index.insert(key, value) == (key not in model)
                model.setdefault(key, value)
            case 7:
                assert index.remove(key) == (model.pop(key, None) is not None)
        if step % 1000 == 999:
            assert index == model
    assert model, "the run ends with entries"
    assert sorted(index) == sorted(model)
    assert sorted(index.items()) == sorted(model.items())
    assert sorted(index.values()) == sorted(model.values())
    assert len(index) == len(model)
    index.clear()
    assert len(index) == 0 and not index and list(index) == []


def test_it_is_a_mutable_mapping(index: farindex.Index) -> None:
    assert isinstance(index, MutableMapping) and isinstance(index, Mapping)
    assert issubclass(farindex.Index, MutableMapping)
    assert isinstance(index.items(), ItemsView)
    index.update({b"a": b"1"})
    index.update([(b"b", b"2")])
    assert dict(index) == {b"a": b"1", b"b": b"2"}
    assert {**{key.decode(): value for key, value in index.items()}} == {"a": b"1", "b": b"2"}
    assert index.keys() & {b"a", b"z"} == {b"a"}
    assert (b"a", b"1") in index.items() and (b"a", b"2") not in index.items()
    assert index == {b"a": b"1", b"b": b"2"} and index != {b"a": b"1"} and index != 7
    with pytest.raises(TypeError):
        hash(index)


def test_absent_keys(index: farindex.Index) -> None:
    for use in (lambda: index[b"x"], lambda: index.__delitem__(b"x"), lambda: index.pop(b"x")):
        with pytest.raises(KeyError) as raised:
            use()
        assert raised.value.args == (b"x",)
    with pytest.raises(KeyError):
        index.popitem()
    assert index.get(b"x") is None and index.get(b"x", 5) == 5
    assert index.pop(b"x", None) is None
    with pytest.raises(TypeError):
        index.pop(b"x", 1, 2)


def test_keys_and_values_are_bytes_like(index: farindex.Index) -> None:
    for key in (b"key", bytearray(b"key"), memoryview(b"key"), memoryview(b"-key")[1:]):
        index[key] = bytearray(b"value")
        assert index.pop(key) == b"value"
    for empty in (b"", bytearray(), memoryview(b"")):
        index[empty] = empty
        assert index[b""] == b""
    for other in ("key", 7, None, [b"key"]):
        for use in (lambda: index[other], lambda: index.get(other), lambda: other in index, lambda: index.insert(b"k", other)):
            with pytest.raises(TypeError, match="bytes-like"):
                use()
    with pytest.raises(BufferError):
        index[memoryview(b"abcdef")[::2]] = b""
    index[b"bin\0\xff"] = bytes(range(256))
    assert index[b"bin\0\xff"] == bytes(range(256))


def test_long_keys_and_values(index: farindex.Index) -> None:
    longest = b"k" * index.max_key_size
    index[longest] = b"1"
    assert index[longest] == b"1"
    with pytest.raises(farindex.KeyTooLong, match="limit"):
        index[longest + b"k"] = b""
    assert index.max_value_size >= 1 << 20
    index[b"long"] = b"v" * (1 << 20)
    assert index[b"long"] == b"v" * (1 << 20)
    with pytest.raises(farindex.ValueTooLong):
        index[b"long"] = bytes(index.max_value_size + 1)
    assert len(index[b"long"]) == 1 << 20


def test_conditional_operations(index: farindex.Index) -> None:
    done, differs, absent = farindex.Outcome.DONE, farindex.Outcome.DIFFERS, farindex.Outcome.ABSENT
    assert index.replace(b"k", b"1", b"2") is absent and index.remove_if(b"k", b"1") is absent
    assert not index.update_if_present(b"k", b"1") and b"k" not in index
    assert index.insert(b"k", b"1") and not index.insert(b"k", b"2")
    assert index.replace(b"k", b"2", b"3") is differs and index.remove_if(b"k", b"2") is differs
    assert index.replace(b"k", b"1", b"3") is done and index[b"k"] == b"3"
    assert index.update_if_present(b"k", b"4")
    assert index.remove_if(b"k", b"4") is done and b"k" not in index
    assert done and not differs and not absent


def test_batches(index: farindex.Index) -> None:
    keys = [b"%d" % i for i in range(1000)]
    index.set_many({key: key * 2 for key in keys})
    assert index.get_many(keys) == [key * 2 for key in keys]
    assert index.get_many(iter([b"5", b"x", b"5"])) == [b"55", None, b"55"]
    assert index.contains_many([b"5", b"x"]) == [True, False]
    index.set_many((key, b"%d" % i) for i, key in enumerate([b"5", b"6", b"5", b"5"]))
    assert (index[b"5"], index[b"6"]) == (b"3", b"1"), "the last pair of a key counts"
    assert index.delete_many([b"5", b"x", b"6", b"5"]) == 2
    assert index.get_many([]) == [] and index.delete_many([]) == 0 and index.exists_prefix([]) == 0
    index.set_many([])
    for batch in (index.get_many, index.contains_many, index.delete_many, index.exists_prefix):
        with pytest.raises(TypeError, match="several keys"):
            batch(b"5")
        with pytest.raises(TypeError):
            batch([b"1", "2"])
    with pytest.raises((TypeError, ValueError)):
        index.set_many([b"abc"])
    too_long = b"k" * (index.max_key_size + 1)
    with pytest.raises(farindex.KeyTooLong):
        index.set_many([(b"new", b""), (too_long, b"")])
    with pytest.raises(farindex.KeyTooLong):
        index.get_many([b"1", too_long])
    assert index[b"7"] == b"77", "an error leaves the index at work"


def test_many_long_values(index: farindex.Index) -> None:
    """More than are held at once on their way to the interpreter."""
    keys = [b"%d" % i for i in range(150)]
    values = [bytes([i]) * 20_000 for i in range(150)]
    index.set_many(zip(keys, values, strict=True))
    assert index.get_many([*keys, b"absent", *keys]) == [*values, None, *values]


def test_the_longest_prefix(index: farindex.Index) -> None:
    keys = [b"block-%d" % i for i in range(300)]
    index.set_many((key, b"") for key in keys[:257])
    assert index.exists_prefix(keys) == 257
    assert index.exists_prefix(keys[:100]) == 100
    assert index.exists_prefix(keys[257:]) == 0
    index.remove(keys[0])
    assert index.exists_prefix(keys) == 0


def test_iterators_over_many_entries(index: farindex.Index, tree: farindex.Index) -> None:
    pairs = {b"%05d" % i: b"%d" % i for i in range(2000)}
    for one in (index, tree):
        one.update(pairs)
        assert sorted(one.items()) == sorted(pairs.items())
        half = iter(one)
        for _ in range(5):
            next(half)
        one.remove(b"00000")
        assert len(list(half)) in (1994, 1995)
        assert next(half, None) is None
        assert sum(1 for _, _ in zip(one, one)) == 1999, "two at the same time"
    assert list(tree) == sorted(pairs)[1:]


def test_ranges(tree: farindex.Index, index: farindex.Index) -> None:
    tree.update({b"%04d" % i: b"" for i in range(1000)})

    def keys(*arguments: bytes, **settings: object) -> list[int]:
        return [int(key) for key, _ in tree.range(*arguments, **settings)]

    assert keys() == list(range(1000))
    assert keys(b"0003", b"0006") == [3, 4, 5]
    assert keys(b"0003", b"0006", include_start=False, include_stop=True) == [4, 5, 6]
    assert keys(b"0300", limit=600) == list(range(300, 900))
    assert keys(b"0990", limit=600) == list(range(990, 1000))
    assert keys(limit=256) == list(range(256)) and keys(limit=0) == []
    assert keys(b"0500", b"0400") == [] and keys(b"0500", b"0500") == []
    assert keys(stop=b"0002") == [0, 1]
    assert index.is_ordered is False and tree.is_ordered is True
    with pytest.raises(farindex.NotOrdered, match="ordered kind"):
        index.range()


def test_popitem_takes_each_entry_once(tree: farindex.Index) -> None:
    tree.update({b"%d" % i: b"v" for i in range(10)})
    assert [tree.popitem() for _ in range(10)] == [(b"%d" % i, b"v") for i in range(10)]
    assert not tree
