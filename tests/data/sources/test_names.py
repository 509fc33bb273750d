import pickle

from asterism.data.sources.names import Names


def test_names_are_found_by_number() -> None:
    names = [b"b.png", b"", "ü/日本.jpg".encode(), b"a b", b"\xff\xfe"]
    packed = Names.of(names)
    assert len(packed) == len(names)
    assert [packed[i] for i in range(len(packed))] == names
    again = pickle.loads(pickle.dumps(packed))
    assert [again[i] for i in range(len(again))] == names


def test_no_names() -> None:
    assert len(Names.of([])) == 0


def test_a_name_takes_its_length_plus_nine_bytes() -> None:
    packed = Names.of([b"x" * 20] * 1000)
    assert len(packed.blob) + packed._ends.nbytes == 1000 * (20 + 1 + 8)
