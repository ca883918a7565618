"""The buffer protocol: records of one size, in and out."""

import array
import ctypes
import mmap

import farindex
import pytest

numpy = pytest.importorskip("numpy")


def test_numpy_arrays(index: farindex.Index) -> None:
    keys = [b"block-%d" % i for i in range(500)]
    blocks = numpy.random.default_rng(3).random((500, 64), dtype=numpy.float32)
    index.put_many_from(keys, blocks)
    assert index[keys[7]] == blocks[7].tobytes()
    found = numpy.zeros_like(blocks)
    assert index.get_many_into(keys, found) == [256] * 500
    assert numpy.array_equal(found, blocks)
    # Part of an array, in another order, with absent keys.
    part = numpy.full((3, 64), -1, dtype=numpy.float32)
    assert index.get_many_into([keys[9], b"absent", keys[2]], part) == [256, -1, 256]
    assert numpy.array_equal(part[[0, 2]], blocks[[9, 2]]) and (part[1] == -1).all()
    # More than one batch, and one value that does not fit in the last.
    index[keys[-1]] = bytes(257)
    with pytest.raises(farindex.ValueTooLong, match="key 499 has 257"):
        index.get_many_into(keys, found)
    index.put_many_from(keys[:10], blocks[100:110])
    assert index[keys[0]] == blocks[100].tobytes()


@pytest.mark.parametrize(
    "make",
    [
        bytearray,
        lambda size: mmap.mmap(-1, size),
        lambda size: array.array("I", bytes(size)),
        lambda size: memoryview(bytearray(size)).cast("B", (2, size // 2)),
        lambda size: (ctypes.c_uint16 * (size // 2))(),
        lambda size: numpy.zeros(size // 8, dtype=">i8"),
    ],
)
def test_anything_with_the_buffer_protocol(index: farindex.Index, make: object) -> None:
    target = make(16)
    index.update({b"a": b"12345678", b"b": b"abcdefgh"})
    assert index.get_many_into([b"a", b"b"], target) == [8, 8]
    assert bytes(target) == b"12345678abcdefgh"
    index.put_many_from([b"b", b"a"], target)
    assert (index[b"a"], index[b"b"]) == (b"abcdefgh", b"12345678")


def test_short_values_leave_the_rest_of_a_record(index: farindex.Index) -> None:
    index.update({b"a": b"1", b"b": b"", b"c": b"123"})
    target = bytearray(b"." * 13)
    assert index.get_many_into([b"a", b"b", b"x", b"c"], target, 3) == [1, 0, -1, 3]
    assert target == b"1........123."
    index.put_many_from([b"a", b"b"], b"abcdef", lengths=[0, 2])
    assert (index[b"a"], index[b"b"]) == (b"", b"de")


def test_wrong_sizes(index: farindex.Index) -> None:
    index[b"a"] = b"12345678"
    index[b"b"] = b"1"
    target = bytearray(b"." * 16)
    with pytest.raises(farindex.ValueTooLong, match="key 1 has 8 bytes, and a record of the buffer has 4"):
        index.get_many_into([b"b", b"a"], target, 4)
    assert target == b"1" + b"." * 15, "not one byte beyond a record"
    with pytest.raises(ValueError, match="too short for 3 records of 8"):
        index.get_many_into([b"a"] * 3, target, 8)
    with pytest.raises(ValueError, match="not 3 records of one size"):
        index.get_many_into([b"a"] * 3, target)
    with pytest.raises(ValueError, match="at least 1"):
        index.get_many_into([b"a"], target, 0)
    with pytest.raises(ValueError, match="too short"):
        index.get_many_into([b"a"] * 3, target, (1 << 64) // 2)
    with pytest.raises(OverflowError):
        index.get_many_into([b"a"], target, -1)
    with pytest.raises(ValueError, match="2 keys and 1 lengths"):
        index.put_many_from([b"a", b"b"], target, lengths=[3])
    with pytest.raises(ValueError, match=r"lengths\[0\] is 17"):
        index.put_many_from([b"a"], target, lengths=[17])
    assert index.get_many_into([], bytearray()) == [] and index.get_many_into([], target, 8) == []
    index.put_many_from([], b"")
    assert index[b"a"] == b"12345678"


def test_buffers_that_cannot_be_used(index: farindex.Index) -> None:
    index[b"a"] = b"12345678"
    array_2d = numpy.zeros((4, 4), dtype=numpy.int32)
    read_only = numpy.zeros(8, dtype=numpy.uint8)
    read_only.flags.writeable = False
    for target in (bytes(8), memoryview(bytes(8)), read_only):
        with pytest.raises(BufferError, match="read-only"):
            index.get_many_into([b"a"], target)
    for target in (array_2d[:, ::2], array_2d.T[1:], memoryview(bytearray(16))[::2]):
        with pytest.raises(BufferError, match="contiguous"):
            index.get_many_into([b"a"], target)
        with pytest.raises(BufferError, match="contiguous"):
            index.put_many_from([b"a"], target)
    for target in ([0] * 8, "12345678", None):
        with pytest.raises(TypeError):
            index.get_many_into([b"a"], target)


def test_a_buffer_cannot_be_resized_while_it_is_used_and_can_afterwards(index: farindex.Index) -> None:
    index[b"a"] = b"12345678"
    target = bytearray(8)
    for _ in range(100):
        index.get_many_into([b"a"], target)
        index.put_many_from([b"a"], target)
    target.extend(b"more")
    with pytest.raises(ValueError):
        index.get_many_into([b"a"], target, 16)
    target.extend(b"more")
    assert index.get_many_into([b"a"], target, 16) == [8]


def test_torch_tensors(index: farindex.Index) -> None:
    torch = pytest.importorskip("torch")
    blocks = torch.arange(32, dtype=torch.float16).reshape(4, 8)
    keys = [b"%d" % i for i in range(4)]
    index.put_many_from(keys, blocks.numpy())
    found = torch.zeros_like(blocks)
    assert index.get_many_into(keys, found.numpy()) == [16] * 4
    assert torch.equal(found, blocks)
