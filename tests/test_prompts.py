"""Texts as commands take them: each source as it is, each fault with its place, before any compute."""

import json
from contextlib import contextmanager

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt2ln.bpe import Bpe
from gpt2ln.commands.prompts import argument, parse_ids, read_prompts
from gpt2ln.errors import BadInput, Gpt2lnError, NotFound, UsageError
from gpt2ln.prompt import Prompt

NONE = dict.fromkeys(["text", "file", "lines", "ids", "jsonl"]) | {"prefix_token": "none"}


@pytest.fixture(scope="session")
def bpe(T) -> Bpe:
    return Bpe(T / "encoder.json", T / "vocab.bpe")


@pytest.fixture
def take(bpe, tmp_path):
    """`take(lines=b"...")`: bytes go into a file of that name -> prompts; notes are kept in `take.notes`."""
    notes = []

    def call(**sources) -> list[Prompt]:
        for name, value in sources.items():
            if isinstance(value, bytes):
                (tmp_path / name).write_bytes(value)
                sources[name] = str(tmp_path / name)
        return read_prompts(bpe, notes.append, **(NONE | sources))

    call.notes, call.folder = notes, tmp_path
    return call


def ids(prompts: list[Prompt]) -> list[list[int]]:
    return [list(prompt.ids) for prompt in prompts]


@contextmanager
def fails(error: type[Gpt2lnError], *words: str):
    """Expect `error`, in one line that holds the words."""
    with pytest.raises(error) as caught:
        yield
    assert "\n" not in str(caught.value)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


# sources


def test_no_source_is_no_prompt(take):
    assert take() == []


@pytest.mark.parametrize(
    "text", ["a", "a\n\nb", " a ", "a\n", "2017-10-10", "-hello", "$HOME `id` ~ *", '"quoted"', "\t"]
)
def test_an_argument_is_taken_as_it_is(take, bpe, text):
    assert take(text=text) == [Prompt(tuple(bpe.encode(text)), text)]


def test_the_name_of_a_file_as_a_text_is_told(take):
    name = str(take.folder / "ham.txt")
    assert ids(take(text=name))
    assert take.notes == []
    take(file=b"a")
    (take.folder / "ham.txt").write_text("a")
    assert ids(take(text=name)) == ids(take(text=name))
    assert set(take.notes) == {f"note: {name} is a file, and here a text; its content is read with -f"}


def test_a_file_is_one_text_with_its_blanks_and_last_newline(take):
    assert ids(take(file=b"a\n\nb")) == [[64, 198, 198, 65]]
    assert ids(take(file=b" a\r\nb\n")) == [[220, 64, 201, 198, 65, 198]]
    assert take(file=b"--help\n")[0].text == "--help\n"


def test_stdin_is_a_file_called_hyphen(take, monkeypatch, tmp_path):
    (tmp_path / "in").write_bytes("a\n\nb😨".encode())
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert take(file="-")[0].text == "a\n\nb😨"
    (tmp_path / "in").write_bytes(b"\xff")
    for source in ("file", "lines", "jsonl"):
        with (tmp_path / "in").open() as stdin, fails(BadInput, "stdin ", "is not valid UTF-8 at byte 0 (0xff)"):
            monkeypatch.setattr("sys.stdin", stdin)
            take(**{source: "-"})


def test_each_line_is_a_text(take):
    assert [p.text for p in take(lines=b"a\n b \r\n-c")] == ["a", " b ", "-c"]
    assert [p.text for p in take(lines=b"a\n b \r\n-c\n")] == ["a", " b ", "-c"]


def test_ids_are_taken_without_a_text(take):
    assert take(ids=" 64\n259 0") == [Prompt((64, 259, 0))]


def test_json_lines_carry_id_and_seed(take):
    rows = [
        {"id": "x", "prompt": " the", "seed": 7},
        {"tokens": [64, 65]},
        {"id": [1, None], "prompt": "é", "other": 1},
        {"prompt": "a", "seed": 2**64 - 1},
    ]
    found = take(jsonl="\n".join(map(json.dumps, rows)).encode())
    assert found[:2] == [Prompt((258,), " the", "x", 7), Prompt((64, 65))]
    assert found[2:] == [Prompt((127, 102), "é", [1, None]), Prompt((64,), "a", None, 2**64 - 1)]


def test_twenty_records_stay_in_order(take):
    found = take(jsonl=b"".join(b'{"id": %d, "prompt": "a"}\n' % i for i in range(20)))
    assert [prompt.id for prompt in found] == list(range(20))


def test_prefix_token_goes_before_every_prompt_and_makes_an_empty_one_whole(take):
    assert ids(take(text="a", prefix_token="eot")) == [[259, 64]]
    assert ids(take(text="", prefix_token="eot")) == [[259]]
    assert ids(take(ids="", prefix_token="eot")) == [[259]]
    assert ids(take(lines=b"a\n\nb", prefix_token="eot")) == [[259, 64], [259], [259, 65]]


def test_end_of_text_is_text_and_said_once(take):
    assert len(take(lines=b"<|endoftext|>\na<|endoftext|>")[0].ids) == 13
    assert take.notes == [
        "note: <|endoftext|> in a text is plain text, as in the official encoder;"
        " for the token: --prefix-token eot, --ids"
    ]
    take(ids="259")
    assert len(take.notes) == 1


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=("Cs",)), min_size=1))
@example("👍")  # a pair of surrogates where JSON is ASCII
def test_any_text_comes_through_json(bpe, tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    for line in (json.dumps({"prompt": text}), json.dumps({"prompt": text}, ensure_ascii=False)):
        path.write_text(line, encoding="utf-8", newline="\n")
        (found,) = read_prompts(bpe, print, **(NONE | {"jsonl": str(path)}))
        assert found.text == text


# faults, each with its place


def test_one_source_only(take):
    with fails(UsageError, "TEXT and --ids: give one of them"):
        take(text="a", ids="1")
    with fails(UsageError, "--file and --lines and --jsonl: give one of them"):
        take(file=b"a", lines=b"a", jsonl=b"a")


@pytest.mark.parametrize("source", ["file", "lines", "jsonl"])
def test_a_missing_file_is_named_in_full(take, source):
    with fails(NotFound, f"{take.folder / 'gone'}: No such file or directory"):
        take(**{source: str(take.folder / "gone")})
    with fails(NotFound, f"{take.folder}: Is a directory"):
        take(**{source: str(take.folder)})


@pytest.mark.parametrize(
    ("sources", "where"),
    [
        ({"text": ""}, "prompt: empty prompt"),
        ({"file": b""}, "/file: empty prompt"),
        ({"ids": " "}, "--ids: empty prompt"),
        ({"lines": b"a\n\nb\n"}, "/lines line 2: empty prompt"),
        ({"lines": b"a\n\r\n"}, "/lines line 2: empty prompt"),
        ({"lines": b"\n"}, "/lines line 1: empty prompt"),
        ({"jsonl": b'{"prompt": "a"}\n{"prompt": ""}\n'}, "/jsonl line 2: empty prompt"),
        ({"jsonl": b'{"tokens": []}'}, "/jsonl line 1: empty prompt"),
    ],
)
def test_an_empty_prompt_is_refused_with_the_way_out(take, sources, where):
    with fails(BadInput, where, "expected at least one token; --prefix-token eot starts from <|endoftext|>"):
        take(**sources)


@pytest.mark.parametrize("source", ["lines", "jsonl"])
def test_a_file_without_lines_is_refused(take, source):
    with fails(BadInput, f"/{source}: empty, expected one text a line"):
        take(**{source: b""})


@pytest.mark.parametrize(
    ("sources", "where"),
    [
        ({"text": "a\udcffb"}, "prompt is not valid UTF-8 at byte 1 (0xff)"),
        ({"file": b"fine\na\xffb"}, "/file is not valid UTF-8 at byte 6 (0xff) (line 2)"),
        ({"file": "café".encode("latin-1")}, "/file is not valid UTF-8 at byte 3 (0xe9) (line 1)"),
        ({"file": "é".encode()[:1]}, "/file is not valid UTF-8 at byte 0 (0xc3) (line 1)"),
        ({"lines": b"fine\na\xffb"}, "/lines line 2 is not valid UTF-8 at byte 1 (0xff)"),
        ({"jsonl": b'{"prompt": "a\xff"}'}, "/jsonl line 1 is not valid UTF-8 at byte 13 (0xff)"),
        (
            {"jsonl": b'{"prompt": "a"}\n{"prompt": "\\ud83d"}'},
            "/jsonl line 2: text is not valid Unicode at character 0",
        ),
        ({"jsonl": b'{"prompt": "ab\\udc4d"}'}, "line 1: text is not valid Unicode at character 2 (a lone surrogate)"),
        ({"text": "a\ud83d"}, "prompt is not valid Unicode at character 1 (a lone surrogate)"),
    ],
)
def test_what_is_not_utf8_is_refused_with_its_place(take, sources, where):
    with fails(BadInput, where):
        take(**sources)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (b"{", "not JSON: Expecting property name enclosed in double quotes at column 2"),
        (b"", "not JSON: Expecting value at column 1"),
        (b'{"prompt": "a"} x', "not JSON: Extra data at column 17"),
        (b'{"prompt": "a", "id": NaN}', "not JSON: NaN is no number of JSON"),
        (b'{"prompt": "a", "id": -Infinity}', "not JSON: -Infinity is no number of JSON"),
        (b"[" * 100_000, "not JSON: "),
        (b'{"tokens": [' + b"1" * 5000 + b"]}", "not JSON: "),
        (b'"a"', 'expected an object with either "prompt" or "tokens"'),
        (b"{}", 'expected an object with either "prompt" or "tokens"'),
        (b'{"prompt": "a", "tokens": [1]}', 'expected an object with either "prompt" or "tokens"'),
        (b'{"prompt": null}', '"prompt" is not a text'),
        (b'{"prompt": 3}', '"prompt" is not a text'),
        (b'{"tokens": "64"}', '"tokens" is not a list of whole numbers'),
        (b'{"tokens": [1.0]}', '"tokens" is not a list of whole numbers'),
        (b'{"tokens": [true]}', '"tokens" is not a list of whole numbers'),
        (b'{"tokens": [64, 260]}', "token id 260 outside 0..259 (item 2)"),
        (b'{"tokens": [-1]}', "token id -1 outside 0..259 (item 1)"),
        (b'{"prompt": "a", "seed": -1}', '"seed" is -1, expected a whole number from 0 below 2**64'),
        (b'{"prompt": "a", "seed": 18446744073709551616}', "expected a whole number from 0 below 2**64"),
        (b'{"prompt": "a", "seed": "7"}', '"seed" is "7", expected a whole number'),
        (b'{"prompt": "a", "seed": true}', '"seed" is true, expected a whole number'),
    ],
)
def test_a_bad_record_is_refused_with_its_line(take, row, says):
    with fails(BadInput, "/jsonl line 2: ", says):
        take(jsonl=b'{"prompt": "fine"}\n' + row + b"\n")


def test_ids_outside_and_ids_that_are_none(take):
    with fails(BadInput, "token id 260 outside 0..259 (item 2)"):
        take(ids="0 260")
    with fails(UsageError, "token id '464,3290' is not a whole number (item 1); ids have blanks between them"):
        take(ids="464,3290")


def test_whole_numbers_are_plain_digits():
    assert parse_ids(["0", "-1", "+7", "007"]) == [0, -1, 7, 7]


def test_argument_keeps_what_the_locale_could_not_read():
    assert argument("é\udcc3\udca9") == "éé"


# on the command line: the same, and before TensorFlow


def test_generate_refuses_before_any_engine(cli, T, tmp_path, monkeypatch):
    engine = property(lambda self: pytest.fail("the engine was asked for"))
    monkeypatch.setattr("gpt2ln.library.Model.engine", engine)
    (tmp_path / "x.jsonl").write_text('{"prompt": "a"}\n{"prompt": ""}\n')
    for argv, status, words in [
        ([""], 5, ["prompt: empty prompt", "--prefix-token eot"]),
        (["-f", "/dev/null"], 5, ["/dev/null: empty prompt"]),
        (["--jsonl", tmp_path / "x.jsonl"], 5, ["x.jsonl line 2: empty prompt"]),
        (["a\udcff"], 5, ["prompt is not valid UTF-8 at byte 1 (0xff)"]),
        (["--ids", "260"], 5, ["token id 260 outside 0..259 (item 1)"]),
        (["--ids", "1.5"], 2, ["token id '1.5' is not a whole number (item 1)"]),
        (["-hello"], 2, ["goes after --"]),
        (["a", "--ids", "1"], 2, ["TEXT and --ids: give one of them"]),
        (["-f", tmp_path / "gone"], 3, [f"{tmp_path / 'gone'}: No such file"]),
    ]:
        ran = cli("generate", "-m", T, *argv)
        assert (ran.status, ran.out) == (status, ""), ran
        assert ran.err.startswith("error: "), ran
        assert ran.err.count("\n") == 1, ran
        assert [word for word in words if word not in ran.err] == [], ran


@pytest.mark.parametrize(
    ("argv", "prompt", "tokens"),
    [
        (["-f", "{file}"], "a\n\nb", [64, 198, 198, 65]),
        (["--lines", "{lines}"], "a", [64]),
        (["--ids", "64 259"], "a<|endoftext|>", [64, 259]),
        (["--jsonl", "{jsonl}"], " the", [258]),
        (["--", "-hello"], "-hello", [12, 257, 75, 75, 78]),
        (["2017"], "2017", [17, 15, 16, 22]),
        (["--prefix-token", "eot", ""], "", [259]),
        ([], "", [259]),
    ],
)
def test_generate_takes_every_source(cli, T, tmp_path, argv, prompt, tokens):
    for name, data in {"file": b"a\n\nb", "lines": b"a\n", "jsonl": b'{"prompt": " the"}\n'}.items():
        (tmp_path / name).write_bytes(data)
        argv = [arg.replace(f"{{{name}}}", str(tmp_path / name)) for arg in argv]
    ran = cli("generate", "-q", "-m", T, "--format", "jsonl", "--length", 1, "--greedy", *argv)
    assert (ran.status, ran.err) == (0, "")
    record = json.loads(ran.out)
    assert (record["prompt"], record["prompt_tokens"]) == (prompt, tokens)
