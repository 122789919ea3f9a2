"""What is written to an overlay is read back, and nothing of it reaches the disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from damaged_folder import photograph
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.inspection.overlay import PAGE_BYTES, OverlayStorage

SIZES = st.integers(0, 3 * PAGE_BYTES)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), SIZES, st.binary(min_size=1, max_size=300)),
        st.tuples(st.just("append"), st.just(0), st.binary(min_size=1, max_size=PAGE_BYTES + 9)),
        st.tuples(st.just("truncate"), SIZES, st.just(b"")),
        st.tuples(st.just("read"), SIZES, st.just(b"")),
    ),
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(original=SIZES, steps=STEPS)
def test_an_overlay_reads_like_a_file_and_leaves_the_real_one_alone(
    original: int, steps: list[tuple[str, int, bytes]]
) -> None:
    content = bytes(number * 7 % 251 for number in range(original))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "x.log").write_bytes(content)
        before = photograph(folder)
        storage = OverlayStorage(name)
        file, model = storage.open(f"{name}/x.log"), bytearray(content)
        for step, number, data in steps:
            if step == "write":
                file.write_at(data, number)
                model.extend(bytes(max(0, number - len(model))))
                model[number : number + len(data)] = data
            elif step == "append":
                assert file.append([data[:5], data[5:]]) == len(model)
                model += data
            elif step == "truncate":
                file.truncate(number)
                model = model[:number] + bytes(max(0, number - len(model)))
            assert file.size() == len(model)
            assert file.read_at(200, number) == bytes(model[number : number + 200])
        assert file.read_at(len(model) + 10, 0) == bytes(model)
        assert bytes(file.map(len(model))) == bytes(model)
        file.close()
        storage.close()
        assert photograph(folder) == before


def test_names_are_changed_in_the_overlay_alone(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "a").write_bytes(b"a")
    (tmp_path / "t-0" / "b").write_bytes(b"b")
    before = photograph(tmp_path)
    root = str(tmp_path)
    storage = OverlayStorage(root)
    storage.rename(f"{root}/t-0/a", f"{root}/t-0/b")
    assert storage.list_folder(f"{root}/t-0") == ["b"]
    assert storage.open(f"{root}/t-0/b").read_at(9, 0) == b"a"
    assert storage.is_changed(f"{root}/t-0/b"), "another file is there now"
    with pytest.raises(FileNotFoundError):
        storage.open(f"{root}/t-0/a")
    with pytest.raises(FileNotFoundError):
        storage.open(f"{root}/../elsewhere")
    storage.make_folder(f"{root}/u-0/deep")
    storage.open(f"{root}/u-0/new", create=True).append([b"new"])
    storage.remove_tree(f"{root}/t-0")
    assert sorted(storage.files()) == [f"{root}/u-0/new"]
    storage.close()
    assert photograph(tmp_path) == before
