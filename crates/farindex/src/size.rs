//! Numbers and sizes as text: `10M`, `64Ki`, `1GiB`, `1_000`, `1.5K`; and times: `10s`, `250ms`, `2min`.
//!
//! K, M, G and T are powers of 1000; Ki, Mi, Gi and Ti are powers of 1024. A B may follow; case means nothing.

use std::time::Duration;

/// Parses a whole number with an optional suffix, for counts and for sizes in bytes.
///
/// ```
/// assert_eq!(farindex::size::parse_count("64KB"), Ok(64_000));
/// assert_eq!(farindex::size::parse_count("64KiB"), Ok(65_536));
/// ```
pub fn parse_count(text: &str) -> Result<u64, String> {
    let bad = |why: &str| Err(format!("{text:?} {why}; write a number such as 4096, 10M, 64Ki or 1GiB"));
    let clean: String = text.trim().chars().filter(|&c| c != '_').collect();
    let digits = clean.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(clean.len());
    let (number, suffix) = clean.split_at(digits);
    let suffix = suffix.trim_start().to_ascii_lowercase();
    let unit: u64 = match suffix.strip_suffix('b').unwrap_or(&suffix) {
        "" => 1,
        "k" => 1000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "t" => 1_000_000_000_000,
        "ki" => 1 << 10,
        "mi" => 1 << 20,
        "gi" => 1 << 30,
        "ti" => 1 << 40,
        _ if digits == 0 => return bad("is no number"),
        _ => return bad("has no suffix that is known"),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let misplaced = number.ends_with('.') || fraction.contains('.') || fraction.len() > 18;
    let (Ok(whole), false) = (whole.parse::<u64>(), misplaced) else {
        return bad(if digits == 0 { "is no number" } else { "is not a number that fits" });
    };
    let part: u128 = format!("0{fraction}").parse().unwrap_or_default();
    let (part, of) = (part * u128::from(unit), 10u128.pow(fraction.len() as u32));
    if !part.is_multiple_of(of) {
        return bad("is no whole number");
    }
    let sum = u128::from(whole) * u128::from(unit) + part / of;
    u64::try_from(sum).or_else(|_| bad("is too large"))
}

/// Parses a time with its unit: ms, s, min or h.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is no time; write it with its unit, such as 250ms, 10s or 2min");
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| bad())?;
    let seconds = match unit.trim_start() {
        "ms" => number / 1000.0,
        "s" => number,
        "min" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(bad()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_people_write_them() {
        for (text, want) in [
            ("0", 0),
            ("4096", 4096),
            ("1_000_000", 1_000_000),
            ("10M", 10_000_000),
            ("64Ki", 65_536),
            ("1GiB", 1 << 30),
            ("8 B", 8),
            ("2GB", 2_000_000_000),
            ("8m", 8_000_000),
            ("8mib", 8 << 20),
            ("1.5GiB", 3 << 29),
            ("1.5K", 1500),
            ("1.5Ki", 1536),
            ("0.25Mi", 262_144),
            ("2.50M", 2_500_000),
        ] {
            assert_eq!(parse_count(text), Ok(want), "{text}");
        }
        for (text, want) in [
            ("", "is no number"),
            ("K", "is no number"),
            (".5", "not a number"),
            ("5x", "no suffix"),
            ("1.", "not a number"),
            ("1.2.3", "not a number"),
            (".5", "not a number"),
            ("99999999999999999999", "not a number that fits"),
            ("99999999999T", "is too large"),
            ("0.3", "is no whole number"),
            ("0.3Ki", "is no whole number"),
        ] {
            let error = parse_count(text).expect_err(text);
            assert!(error.contains(want), "{text}: {error}");
        }
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("1.5 min"), Ok(Duration::from_secs(90)));
        for text in ["10", "", "s", "-1s", "1 fortnight"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
