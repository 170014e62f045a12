"""Results: whole files or none, JSON that every reader takes, columns that line up."""

import json
import math
import os

import pytest

from gpt2ln.commands.output import as_csv, as_json, as_table, results
from gpt2ln.errors import NotFound, UsageError, printable

from .refusals import refused


def test_a_file_has_its_name_when_it_is_whole(tmp_path):
    with results(str(tmp_path / "out"), force=False) as out:
        out.write("é😨\n")
        out.flush()
        assert [path.name for path in tmp_path.iterdir()] == ["out.part"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_bytes() == "é😨\n".encode()


@pytest.mark.parametrize("path", [None, "-"])
def test_stdout_where_no_file_is_named(capfd, path):
    with results(path, force=False) as out:
        out.write("a\n")
    assert capfd.readouterr() == ("a\n", "")


def write(path, text: str, then: BaseException, *, force: bool = False) -> None:
    with results(str(path), force) as out:
        out.write(text)
        raise then


def test_nothing_stays_after_an_error(tmp_path):
    with pytest.raises(ValueError, match="boom"):
        write(tmp_path / "out", "half", ValueError("boom"))
    assert list(tmp_path.iterdir()) == []


def test_what_was_written_stays_after_ctrl_c_under_another_name(tmp_path, capfd):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "out", '{"whole": 1}\n', KeyboardInterrupt())
    assert [path.name for path in tmp_path.iterdir()] == ["out.part"]
    assert (tmp_path / "out.part").read_text() == '{"whole": 1}\n'
    assert capfd.readouterr() == ("", f"interrupted: what was written is in {tmp_path / 'out.part'}\n")


def test_nothing_is_overwritten_without_force(tmp_path):
    (tmp_path / "out").write_text("old")
    with pytest.raises(UsageError, match="out: exists; --force overwrites it"), results(str(tmp_path / "out"), False):
        pytest.fail("begun")
    assert (tmp_path / "out").read_text() == "old"
    with results(str(tmp_path / "out"), force=True) as out:
        out.write("new")
        out.flush()
        assert (tmp_path / "out").read_text() == "old"
    assert (tmp_path / "out").read_text() == "new"


def test_an_error_under_force_leaves_the_old_file(tmp_path):
    (tmp_path / "out").write_text("old")
    with pytest.raises(ValueError, match="boom"):
        write(tmp_path / "out", "half", ValueError("boom"), force=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out", "old")]


def test_a_folder_is_no_file_and_a_missing_one_is_named(tmp_path):
    with pytest.raises(UsageError, match="is a folder, expected the name of a file"), results(str(tmp_path), True):
        pytest.fail("begun")
    with pytest.raises(NotFound, match=f"{tmp_path}/no: no such folder"), results(str(tmp_path / "no" / "x"), False):
        pytest.fail("begun")


@pytest.mark.parametrize("record", [{"a": None}, ["é😨\u2028", 1e-45, -0.0, 2**70], {"x": '\n\t"\\'}, "\x00"])
def test_json_is_one_line_that_reads_back(record):
    line = as_json(record)
    assert "\n" not in line
    assert json.loads(line) == record


def test_json_shows_text_as_it_is_and_a_lone_surrogate_as_an_escape():
    assert as_json({"a": "é😨"}) == '{"a": "é😨"}'
    assert as_json({"a": "é\ud83d"}) == '{"a": "\\u00e9\\ud83d"}'
    as_json({"a": "\udcff"}).encode()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_json_never_holds_what_is_no_json(number):
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json({"a": number})


def test_csv_quotes_what_it_must():
    assert as_csv([{"a": 1, "b": 'x,"y"'}, {"a": None, "b": "é"}]) == 'a,b\n1,"x,""y"""\n,é\n'


def test_a_table_lines_up():
    rows = [["a", "1", "x"], ["bbb", "22", ""]]
    assert as_table(["name", "n", "what"], rows, left=(0, 2)) == "name   n  what\na      1  x\nbbb   22\n"
    assert as_table(["a", "b"], []) == "a  b\n"


def test_what_an_interrupted_run_left_is_not_overwritten(tmp_path):
    (tmp_path / "out.part").write_text("precious")
    with pytest.raises(UsageError, match=r"out\.part: exists, left by"), results(str(tmp_path / "out"), False):
        pytest.fail("begun")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.part", "precious")]
    with results(str(tmp_path / "out"), force=True) as out:
        out.write("new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out", "new")]


def test_ctrl_c_before_anything_was_written_leaves_nothing(tmp_path, capfd):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "out", "", KeyboardInterrupt())
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with results(str(tmp_path / "pipe"), force=False) as out:
        out.write("a line\n")
    assert os.read(reader, 100) == b"a line\n"
    os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with results(str(tmp_path / "link"), force=True) as out:
        out.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("h0/ln_1", "h0/ln_1"), ("\x1b[2Jx", "\\x1b[2Jx"), ("a\nb", "a\\nb"), ("\u202ex", "\\u202ex"),
        ("é 模型 😨", "é 模型 😨"), ("\udcff", "\\udcff"),
    ],
)  # fmt: skip
def test_names_move_no_cursor(text, shown):
    """A name is anybody's: in a table as in an error it is letters, and nothing that a terminal obeys."""
    assert printable(text) == shown
    assert as_table(["name"], [[text]]) == f"name\n{shown}\n"


def test_an_error_moves_no_cursor(cli, tmp_path):
    error = refused(cli("inspect", "-m", tmp_path / "\x1b[2Jx"), 3, "\\x1b[2Jx")
    assert error.isprintable()
