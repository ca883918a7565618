//! Numbers as Redis reads and writes them.

use crate::Fail;

/// An integer without anything around it, as `INCR` takes it: `-0`, `+1` and `01` are none.
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        b"0" => text.len() == 1,
        [b'1'..=b'9', ..] => digits.len() <= 19,
        _ => false,
    };
    if !canonical {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// An integer argument.
pub(crate) fn integer(text: &[u8]) -> Result<i64, Fail> {
    parse_integer(text).ok_or(Fail::NotAnInteger)
}

/// A floating-point number; not a number is none.
pub(crate) fn parse_float(text: &[u8]) -> Option<f64> {
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!value.is_nan()).then_some(value)
}

/// A score argument.
pub(crate) fn score(text: &[u8]) -> Result<f64, Fail> {
    // One zero: the order of scores knows no other.
    parse_float(text).map(|value| value + 0.0).ok_or(Fail::NotAFloat)
}

/// The shortest text that reads as the same number.
pub(crate) fn format_score(value: f64) -> String {
    let size = value.abs();
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if size != 0.0 && !(1e-5..1e21).contains(&size) {
        // Rust writes 1e21, Redis 1e+21.
        let text = format!("{value:e}");
        return if size >= 1.0 { text.replace('e', "e+") } else { text };
    }
    format!("{value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_canonical() {
        for (text, value) in
            [("0", 0), ("-1", -1), ("9223372036854775807", i64::MAX), ("-9223372036854775808", i64::MIN)]
        {
            assert_eq!(parse_integer(text.as_bytes()), Some(value));
        }
        for text in ["", "-", "-0", "+1", "01", " 1", "1 ", "9223372036854775808", "1.0", "a", "99999999999999999999"] {
            assert_eq!(parse_integer(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn scores_are_written_as_redis_does() {
        for (value, text) in [
            (3.0, "3"),
            (-1.5, "-1.5"),
            (f64::INFINITY, "inf"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (1e-7, "1e-7"),
            (0.1, "0.1"),
        ] {
            assert_eq!(format_score(value), text);
            assert_eq!(parse_float(text.as_bytes()), Some(value));
        }
        assert_eq!(parse_float(b"nan"), None);
        assert_eq!(score(b"-0").map(f64::to_bits), Ok(0));
    }
}
