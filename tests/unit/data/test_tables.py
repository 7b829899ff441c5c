import gzip

import numpy as np
import pandas as pd
import pytest

from zoo.data import read_table
from zoo.errors import DataError

TEXT = "a,b,y\n1,0.1,no\n2,1e-300,yes\n3,,no\n"


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_three_formats_agree(tmp_path):
    plain = read_table(write(tmp_path / "t.csv", TEXT))
    zipped = read_table(write(tmp_path / "t.csv.gz", gzip.compress(TEXT.encode())))
    plain.to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(plain, zipped)
    pd.testing.assert_frame_equal(plain, read_table(str(tmp_path / "t.parquet")), check_dtype=False)
    assert plain["b"].tolist()[:2] == [0.1, 1e-300]
    assert plain["b"].isna().sum() == 1


def test_numbers_are_read_exactly(tmp_path):
    values = np.random.default_rng(0).normal(size=500) * 10.0 ** np.arange(-250, 250)
    text = "a\n" + "\n".join(repr(float(value)) for value in values)
    np.testing.assert_array_equal(read_table(write(tmp_path / "t.csv", text))["a"], values)


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_separators_are_seen_in_the_header(tmp_path, mark):
    frame = read_table(write(tmp_path / "t.csv", TEXT.replace(",", mark)))
    assert list(frame.columns) == ["a", "b", "y"]


def test_byte_order_mark_blanks_and_line_ends(tmp_path):
    text = "\ufeffa, b\r\n1, red\r\n2, blue\r\n"
    frame = read_table(write(tmp_path / "t.csv", text))
    assert frame.to_dict("list") == {"a": [1, 2], "b": ["red", "blue"]}


def test_upper_case_suffix(tmp_path):
    assert len(read_table(write(tmp_path / "T.CSV", TEXT))) == 3


def test_missing_file_suggests_its_neighbour(tmp_path):
    write(tmp_path / "data.csv", TEXT)
    with pytest.raises(DataError, match=r"there is no file '.*dat.csv'. Did you mean 'data.csv'\?"):
        read_table(tmp_path / "dat.csv")
    with pytest.raises(DataError, match=r"there is no file"):
        read_table(tmp_path / "nowhere" / "dat.csv")


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(DataError, match=r"is not a file; .csv, .csv.gz, .parquet files"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.xlsx", b"x", "unknown format of .*accepted: .csv, .csv.gz, .parquet"),
        ("t.csv", b"", "is empty; a header line and data rows are needed"),
        ("t.csv", b" \n\n", "is empty"),
        ("t.csv.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("t.parquet", b"", "is empty"),
        ("t.csv", b"a,b\n", "has zero data rows"),
        ("t.csv", b"a,b\n1,\xe9\n", "is not UTF-8: byte 0xe9 in line 2. Save it as UTF-8"),
        ("t.csv", b"a,b\n1,\0\n", "contains null bytes; it is not a CSV file"),
        ("t.csv", b"a,b,a\n1,2,3\n", "column names must be unique; repeated: 'a'"),
        ("t.csv", b"a,b\n1,2\n3,4,5\n", "is not a valid CSV file: .*line 3"),
        ("t.csv", b"a,b\n1,2,3\n4,5,6\n", "a data row has more cells than the header"),
        ("t.csv", b'a,b\n1,"2\n', "is not a valid CSV file: .*EOF inside string"),
        ("t.csv.gz", b"a,b\n1,2\n", "cannot read .*gzip"),
        ("t.csv.gz", gzip.compress(b"a,b\n1,2\n" * 50, mtime=0)[:-12], "cannot read"),
        ("t.parquet", b"PAR1 nonsense", "is not a readable Parquet file"),
    ],
)
def test_unreadable_files_are_refused(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message) as caught:
        read_table(write(tmp_path / name, content))
    assert "\n" not in str(caught.value)


def test_parquet_with_repeated_columns_is_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    column = pyarrow.array([1, 2])
    table = pyarrow.Table.from_arrays([column, column], names=["a", "a"])
    parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"unique; repeated: 'a'|not a readable Parquet"):
        read_table(tmp_path / "t.parquet")


def test_a_file_without_permission_is_refused(tmp_path, monkeypatch):
    def deny(path):
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "t.csv", TEXT)
    monkeypatch.setattr(type(path), "read_bytes", deny)
    with pytest.raises(DataError, match=r"cannot read .*Permission denied"):
        read_table(path)
