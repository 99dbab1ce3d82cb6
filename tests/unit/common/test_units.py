import pytest

from gpt1_ds.common.text import byte_size, count, duration, parse_count


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10B", 10**10),
        ("500M", 5 * 10**8),
        ("1e9", 10**9),
        ("1_000_000", 10**6),
        ("42", 42),
        ("1.5K", 1500),
        ("-3", -3),
        ("4.1M", 4_100_000),  # not so as floats
        ("65.1K", 65_100),
        ("8.190e3K", 8_190_000),
    ],
)
def test_counts_as_people_write_them(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize(
    "text", ["", "ten", "1.5", "1e-3", "0x10", "10 000", "1e400", "1e99999999999999999999", "4.1234K", "5MB", "nan"]
)
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a (whole|count)"):
        parse_count(text)


def test_numbers_as_people_read_them() -> None:
    assert [count(n) for n in (0, 999, 1000, 116_534_784, 999_999, 2.5e12)] == ["0", "999", "1K", "117M", "1M", "2.5T"]
    assert [count(n) for n in (9.99e14, 7.15e25)] == ["999T", "7.15e+25"], "not 71500000000000T"
    assert [byte_size(n) for n in (512, 1536, 3 * 2**30)] == ["512 B", "1.5 KiB", "3 GiB"]
    assert [duration(s) for s in (0.25, 42, 75, 3600, 93784)] == ["0.2 s", "42 s", "1 min 15 s", "1 h", "1 d 2 h"]
