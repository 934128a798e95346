"""The grammar of `.env`: literal values, every trap of the usual grammars reported, no input that executes or crashes."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from failure import Failure
from recipe import config, dotenv


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("KEY=value", "value"),
        ("  export KEY=value", "value"),
        ('KEY="text # more"  # note', "text # more"),
        ("KEY='text'", "text"),
        ("KEY=abc # note", "abc"),
        ("KEY=p#ss", "p#ss"),
        ("KEY=http://host/page#part", "http://host/page#part"),
        ("KEY=#word", "#word"),
        ("KEY= # note", ""),
        ("KEY=", ""),
        ('KEY=""', ""),
        ("KEY=$HOME/x", "$HOME/x"),
        ("KEY=`id` $(id)", "`id` $(id)"),
        ("KEY='it\"s'", 'it"s'),
        ("KEY=a=b", "a=b"),
        ("KEY=value\r", "value"),
        ("\ufeffKEY=value", "value"),
    ],
)
def test_a_line_gives_this_value(line: str, value: str) -> None:
    assert dotenv.parse(line.encode()).entries["KEY"].value == value


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("KEY = value", "is not KEY=value (no blanks"),
        ("KEY: value", "is not KEY=value (no blanks"),
        ("MY-KEY=value", "is not KEY=value"),
        ("1KEY=value", "is not KEY=value"),
        ("just words", "is not KEY=value"),
    ],
)
def test_a_line_that_is_no_assignment_is_ignored_and_reported(text: str, remark: str) -> None:
    parsed = dotenv.parse(text.encode())
    assert parsed.entries == {}
    assert [remark in one.text for one in parsed.remarks] == [True]


@pytest.mark.parametrize(
    ("text", "value", "remark"),
    [
        ('KEY="a"b"', '"a"b"', "unmatched quote"),
        ("KEY='open", "'open", "unmatched quote"),
        ("KEY= value", "value", "blank after '='"),
        ("KEY=secret #1", "secret", "ends at ' #'"),
        ("KEY=first\nKEY=second", "first", "is set before, in line 1"),
    ],
)
def test_a_doubtful_line_is_taken_and_reported(text: str, value: str, remark: str) -> None:
    parsed = dotenv.parse(text.encode())
    assert parsed.entries["KEY"].value == value
    assert [remark in one.text for one in parsed.remarks] == [True]


def test_bytes_that_are_no_text_and_control_characters_are_reported() -> None:
    parsed = dotenv.parse(b"A=\xff\nB=a\x00b\nC=ok")
    assert parsed.entries == {"C": dotenv.Entry("ok", 3)}
    assert [(one.line, one.key) for one in parsed.remarks] == [(1, ""), (2, "B")]


LINES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.text(alphabet="PORTKEY=#'\"$`()\\ \t:-_;|&<>\r", max_size=30).map(str.encode),
        st.sampled_from([b"PORT=", b"PORT='", b"export PORT=9", b"HOST=$(touch canary)", b"HF_TOKEN=`touch canary`", b"\xef\xbb\xbf"]),
    ),
    max_size=8,
).map(b"\n".join)


@given(LINES)
@settings(max_examples=300)
def test_any_bytes_are_parsed_and_remarks_never_hold_a_value(content: bytes) -> None:
    parsed = dotenv.parse(content)
    lines = content.count(b"\n") + 1
    assert all(1 <= entry.line <= lines for entry in parsed.entries.values())
    assert all("\x00" not in entry.value and "\n" not in entry.value for entry in parsed.entries.values())


@given(LINES)
@settings(max_examples=150)
def test_any_bytes_in_the_file_are_settings_or_a_refusal_and_never_executed(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    root: Path = tmp_path_factory.mktemp("root")
    (root / ".env").write_bytes(content)
    code = "none"
    with contextlib.chdir(root):
        try:
            port = config.load(root, {"PATH": "/usr/bin:/bin", "HOME": str(root)}).number("PORT")
        except Failure as failure:
            code, port = failure.code, 1
    assert code in ("none", "E_CONFIG")
    assert 1 <= port <= 65535
    assert [path.name for path in root.iterdir()] == [".env"]


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=30).filter(lambda text: "'" not in text))
def test_a_value_in_single_quotes_is_read_back_as_it_was(text: str) -> None:
    assert dotenv.parse(f"KEY='{text}'".encode()).entries["KEY"].value == text
