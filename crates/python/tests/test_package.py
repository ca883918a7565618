"""The documentation's examples, and the type stubs."""

import doctest
import importlib.util
import subprocess
import sys
from pathlib import Path

import farindex
import pytest

HERE = Path(__file__).parent.parent


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = finder.find(farindex, "farindex", module=False, globs={})
    for name in farindex.__all__:
        one = getattr(farindex, name)
        if isinstance(one, type) or callable(one):
            found += finder.find(one, f"farindex.{name}", module=False, globs={})
    return [test for test in found if test.examples]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_docstrings(example: doctest.DocTest) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL * 0)
    out: list[str] = []
    runner.run(example, out=out.append)
    assert runner.failures == 0, "".join(out)


def test_there_are_examples_of_what_users_call() -> None:
    names = {example.name for example in examples()}
    assert len(names) >= 25
    for method in ("Pool.create", "Pool.in_memory", "Index", "Index.get_many_into", "Index.exists_prefix", "Index.range"):
        assert f"farindex.{method}" in names


@pytest.mark.parametrize("page", [HERE / "README.md", HERE.parent.parent / "docs" / "python.md"], ids=lambda page: page.name)
def test_pages(page: Path) -> None:
    failures, examples = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert examples > 5 and failures == 0


def test_every_public_item_is_documented() -> None:
    for name in farindex.__all__:
        one = getattr(farindex, name)
        if isinstance(one, str):
            continue
        assert one.__doc__, name
        if one in (farindex.Pool, farindex.Index, farindex.AsyncIndex):
            for method in vars(one):
                if not method.startswith("_"):
                    assert getattr(one, method).__doc__, f"{name}.{method}"


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
class TestTypes:
    def test_the_stubs_are_what_the_module_has(self, tmp_path: Path) -> None:
        allowed = tmp_path / "allowed"
        allowed.write_text((HERE / "tests" / "stubtest.allowed").read_text())
        stubtest = [sys.executable, "-m", "mypy.stubtest", "farindex", "--allowlist", str(allowed)]
        done = subprocess.run(stubtest, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_the_package_and_its_use_are_typed(self, tmp_path: Path) -> None:
        use = tmp_path / "use.py"
        use.write_text(
            "import farindex\n"
            "from collections.abc import MutableMapping\n"
            "from typing import assert_type\n"
            "pool = farindex.Pool.in_memory('64MiB')\n"
            "index = pool.create_index('test', 'linear', width=16)\n"
            "assert_type(index[b'a'], bytes)\n"
            "assert_type(index.get(b'a'), bytes | None)\n"
            "assert_type(index.get(b'a', 0), bytes | int)\n"
            "assert_type(index.pop(bytearray(b'a'), None), bytes | None)\n"
            "assert_type(list(index.range(b'a', limit=3)), list[tuple[bytes, bytes]])\n"
            "assert_type(list(index), list[bytes])\n"
            "async def run() -> None:\n"
            "    async with index.open_async(threads=2) as words:\n"
            "        assert_type(await words.get_many([b'a']), list[bytes | None])\n"
        )
        wrong = tmp_path / "wrong.py"
        wrong.write_text("import farindex\nfarindex.Pool.in_memory('1GiB').open_index('test')['text'] = b''\n")
        mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
        done = subprocess.run([*mypy, str(use)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout
        example = str(HERE / "examples" / "kv_cache_directory.py")
        done = subprocess.run([*mypy, example], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout
        done = subprocess.run([*mypy, "-p", "farindex"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout
        done = subprocess.run([*mypy, str(wrong)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 1 and "Invalid index type" in done.stdout, done.stdout
