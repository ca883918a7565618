//! Patterns as `KEYS` and `MATCH` take them: `*`, `?`, `[abc]`, `[^a-z]` and `\` before a character that stands for itself.
//!
//! Invariant: the time is at most the product of both lengths, whatever the pattern.

/// Does the whole text match the pattern?
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut rest, mut left) = (pattern, text);
    // Where to go on if what follows the last `*` does not match: one more byte belongs to the `*` then.
    let mut again: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some((b'*', behind)) = rest.split_first() {
            if behind.is_empty() {
                return true;
            }
            again = Some((behind, left));
            rest = behind;
            continue;
        }
        let matched = match (one(rest), left.split_first()) {
            (None, None) => return true,
            (Some((item, behind)), Some((byte, after))) if item.takes(*byte) => Some((behind, after)),
            _ => None,
        };
        match (matched, again) {
            (Some((behind, after)), _) => (rest, left) = (behind, after),
            (None, Some((behind, from))) => {
                let Some((_, from)) = from.split_first() else { return false };
                again = Some((behind, from));
                (rest, left) = (behind, from);
            }
            (None, None) => return false,
        }
    }
}

/// What takes one byte.
enum Item<'p> {
    Any,
    Byte(u8),
    Class(&'p [u8], bool),
}

/// The first item of a pattern that begins with no `*`, and what follows it.
fn one(pattern: &[u8]) -> Option<(Item<'_>, &[u8])> {
    let (first, rest) = pattern.split_first()?;
    Some(match (first, rest) {
        (b'?', rest) => (Item::Any, rest),
        (b'\\', [byte, rest @ ..]) => (Item::Byte(*byte), rest),
        (b'[', rest) => {
            let (inverted, class) = match rest {
                [b'^', class @ ..] => (true, class),
                class => (false, class),
            };
            let mut len = 0;
            // A class that is not closed reaches to the end.
            while let Some(byte) = class.get(len).filter(|byte| **byte != b']') {
                len += if *byte == b'\\' && len + 1 < class.len() { 2 } else { 1 };
            }
            let rest = class.get(len + 1..).unwrap_or_default();
            (Item::Class(class.get(..len).unwrap_or_default(), inverted), rest)
        }
        (byte, rest) => (Item::Byte(*byte), rest),
    })
}

impl Item<'_> {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Item::Any => true,
            Item::Byte(wanted) => *wanted == byte,
            Item::Class(class, inverted) => in_class(class, byte) != *inverted,
        }
    }
}

fn in_class(mut class: &[u8], byte: u8) -> bool {
    loop {
        class = match class {
            [] => return false,
            [b'\\', wanted, rest @ ..] => {
                if *wanted == byte {
                    return true;
                }
                rest
            }
            [from, b'-', to, rest @ ..] => {
                if (*from.min(to)..=*from.max(to)).contains(&byte) {
                    return true;
                }
                rest
            }
            [wanted, rest @ ..] => {
                if *wanted == byte {
                    return true;
                }
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, yes, no) in [
            ("*", &["", "abc"][..], &[][..]),
            ("", &[""], &["a"]),
            ("h?llo", &["hello", "hallo"], &["hllo", "heello"]),
            ("h*llo", &["hllo", "heeeello"], &["hell", "xhllo"]),
            ("h[ae]llo", &["hello", "hallo"], &["hillo"]),
            ("h[^e]llo", &["hallo"], &["hello"]),
            ("h[a-b]llo", &["hallo", "hbllo"], &["hcllo"]),
            ("h[b-a]llo", &["hallo"], &["hcllo"]),
            ("\\*", &["*"], &["a"]),
            ("[\\]]", &["]"], &["\\"]),
            ("a*b*c", &["abc", "aXbYc", "abbbcc"], &["acb", "ab"]),
            ("[a", &["a"], &["b"]),
            ("a\\", &["a\\"], &["a"]),
            ("*a", &["a", "ba", "aa"], &["ab"]),
        ] {
            for text in yes {
                assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
            }
            for text in no {
                assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
            }
        }
    }

    #[test]
    fn a_pattern_with_many_stars_takes_no_time() {
        let (pattern, text) = ([b"*a".repeat(500), b"b".to_vec()].concat(), b"a".repeat(20_000));
        let began = std::time::Instant::now();
        assert!(!matches(&pattern, &text));
        assert!(began.elapsed().as_secs() < 5);
    }
}
