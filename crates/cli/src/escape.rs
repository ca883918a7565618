//! Bytes as text that has no tabs and no line ends, and back.
//!
//! | Written | Byte |
//! |---|---|
//! | `\\` | backslash |
//! | `\t` `\n` `\r` | tab, line feed, carriage return |
//! | `\xHH` | the byte with this hexadecimal number |
//!
//! Invariants: what is escaped is UTF-8 without control characters; unescaping gives the very bytes back. UTF-8 text
//! passes as it is.

/// Appends `bytes`, escaped.
pub(crate) fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\\' => out.extend_from_slice(b"\\\\"),
                '\t' => out.extend_from_slice(b"\\t"),
                '\n' => out.extend_from_slice(b"\\n"),
                '\r' => out.extend_from_slice(b"\\r"),
                '\0'..=' ' | '\x7f' if char != ' ' => hex(char as u8, out),
                _ => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        chunk.invalid().iter().for_each(|byte| hex(*byte, out));
    }
}

fn hex(byte: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
}

/// The bytes that were escaped; an error says what is no escape.
pub(crate) fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&byte| byte == b'\\') {
        out.extend_from_slice(&rest[..at]);
        let (byte, taken) = match rest[at + 1..] {
            [b'\\', ..] => (b'\\', 2),
            [b't', ..] => (b'\t', 2),
            [b'n', ..] => (b'\n', 2),
            [b'r', ..] => (b'\r', 2),
            [b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or_default() as u8;
                (digit(high) << 4 | digit(low), 4)
            }
            _ => {
                let shown = rest[at..].iter().take(4).copied().collect::<Vec<_>>();
                let shown = String::from_utf8_lossy(&shown).into_owned();
                return Err(format!("{shown:?} is no escape: there are \\\\ \\t \\n \\r and \\xHH"));
            }
        };
        out.push(byte);
        rest = &rest[at + taken..];
    }
    out.extend_from_slice(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives() {
        let all: Vec<u8> = (0..=255).chain((0..=255).rev()).chain("äöü €".bytes()).chain([0xE2, 0x82]).collect();
        for bytes in [&all[..], b"", b"\\", b"\\x", b"a\tb\r\n"] {
            let mut text = Vec::new();
            escape(bytes, &mut text);
            assert!(std::str::from_utf8(&text).is_ok() && !text.iter().any(u8::is_ascii_control));
            assert_eq!(unescape(&text).as_deref(), Ok(bytes));
        }
    }

    #[test]
    fn what_is_no_escape_is_refused() {
        for text in ["\\", "\\q", "\\x", "\\x1", "\\xg0", "ok\\"] {
            assert!(unescape(text.as_bytes()).unwrap_err().contains("is no escape"), "{text}");
        }
    }
}
