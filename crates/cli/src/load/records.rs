//! From a file to records.
//!
//! Invariants: bytes are taken as they are, UTF-8 or not; a line that is too long to be of use is passed over without
//! being kept in memory; what is no record is a reject with its line number, and reading goes on behind it.

use super::engine::Format;
use crate::escape::unescape;
use std::io::{self, BufRead, Read};

/// One line's worth.
#[derive(Debug)]
pub(super) struct Record {
    /// Number of its first line, from 1.
    pub(super) line: u64,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
}

/// What cannot be loaded, and why.
#[derive(Debug)]
pub(super) struct Reject {
    pub(super) line: u64,
    pub(super) why: String,
}

/// Which column, as the user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Column {
    /// From 0.
    Number(usize),
    Name(String),
}

impl std::str::FromStr for Column {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<usize>() {
            Ok(0) => Err("columns are counted from 1".to_owned()),
            Ok(number) => Ok(Column::Number(number - 1)),
            Err(_) if text.is_empty() => Err("the name of a column is empty".to_owned()),
            Err(_) => Ok(Column::Name(text.to_owned())),
        }
    }
}

/// How a file is to be read.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) format: Format,
    pub(super) key: Column,
    pub(super) value: Option<Column>,
    pub(super) header: bool,
    pub(super) escaped: bool,
    pub(super) crlf: bool,
}

/// The longest line that can be of use: key and value of the limits, every byte of them escaped, and more columns.
const LINE_MAX: usize = 80 << 20;

type Input = Box<dyn BufRead>;

/// Where a byte of a CSV file stands, by the rules of the reader behind: a quote opens a field only at its beginning,
/// and two of them are one inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quoting {
    FieldBegins,
    Plain,
    Quoted,
    /// Behind a quote that ends the field, unless another one follows.
    PerhapsEnded,
}

/// A CSV file, watched for a quote that is never closed: the reader takes the rest of the file for the field.
struct Quotes {
    input: Input,
    at: Quoting,
    ended: bool,
}

impl Quotes {
    /// Has the file ended within quotes?
    fn are_open(&self) -> bool {
        self.ended && self.at == Quoting::Quoted
    }
}

impl Read for Quotes {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.input.read(buf)?;
        self.ended |= len == 0 && !buf.is_empty();
        for byte in buf.iter().take(len) {
            self.at = match (self.at, byte) {
                (Quoting::FieldBegins | Quoting::PerhapsEnded, b'"') => Quoting::Quoted,
                (Quoting::Quoted, b'"') => Quoting::PerhapsEnded,
                (Quoting::Quoted, _) => Quoting::Quoted,
                (_, b',' | b'\n' | b'\r') => Quoting::FieldBegins,
                _ => Quoting::Plain,
            };
        }
        Ok(len)
    }
}

/// Why a record that ends within quotes is none.
const OPEN_QUOTE: &str = "a quote is never closed: the rest of the file would be this field";

enum Source {
    Lines { input: Input, line: u64, buf: Vec<u8> },
    Csv { reader: Box<csv::Reader<Quotes>>, record: csv::ByteRecord },
}

/// Reads records.
pub(super) struct Records {
    source: Source,
    rules: Rules,
    key: usize,
    value: Option<usize>,
}

impl Records {
    /// Reads the header, if there is one. The inner error is one of the user's.
    pub(super) fn new(input: Input, rules: &Rules) -> io::Result<Result<Self, String>> {
        let mut source = match rules.format {
            Format::Csv => {
                let reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(Quotes {
                    input,
                    at: Quoting::FieldBegins,
                    ended: false,
                });
                Source::Csv { reader: Box::new(reader), record: csv::ByteRecord::new() }
            }
            _ => Source::Lines { input, line: 0, buf: Vec::new() },
        };
        let names: Vec<Vec<u8>> = match (rules.header, &mut source) {
            (false, _) => Vec::new(),
            (true, Source::Csv { reader, record }) => {
                reader.read_byte_record(record).map_err(io::Error::other)?;
                if reader.get_ref().are_open() {
                    return Ok(Err(format!("line 1: {OPEN_QUOTE}")));
                }
                record.iter().map(<[u8]>::to_vec).collect()
            }
            (true, Source::Lines { input, line, buf }) => {
                read_line(input, buf, line, rules.crlf)?;
                buf.split(|&byte| byte == b'\t').map(<[u8]>::to_vec).collect()
            }
        };
        let place = |column: &Column| match column {
            Column::Number(number) => Ok(*number),
            Column::Name(name) => names.iter().position(|found| found == name.as_bytes()).ok_or_else(|| {
                let known: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
                match known.as_slice() {
                    [] => format!("column {name:?} is named, but there are no names: add --header, or count from 1"),
                    known => format!("there is no column {name:?}; the header has {}", known.join(", ")),
                }
            }),
        };
        let key = match place(&rules.key) {
            Ok(key) => key,
            Err(why) => return Ok(Err(why)),
        };
        let value = match rules.value.as_ref().map(place).transpose() {
            Ok(value) => value,
            Err(why) => return Ok(Err(why)),
        };
        Ok(Ok(Records { source, rules: rules.clone(), key, value }))
    }

    /// The next record; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Result<Record, Reject>>> {
        let Records { source, rules, key, value } = self;
        match source {
            Source::Lines { input, line, buf } => {
                let Some(whole) = read_line(input, buf, line, rules.crlf)? else { return Ok(None) };
                let parsed = match whole {
                    false => Err(format!("a line of more than {LINE_MAX} bytes")),
                    true => match rules.format {
                        Format::Jsonl => json(buf),
                        Format::Tsv => tsv(buf, *key, *value).and_then(|pair| open(pair, rules.escaped)),
                        _ => open((buf, &[]), rules.escaped),
                    },
                };
                let line = *line;
                Ok(Some(parsed.map(|(key, value)| Record { line, key, value }).map_err(|why| Reject { line, why })))
            }
            Source::Csv { reader, record } => {
                let read = reader.read_byte_record(record);
                let line = record.position().map_or_else(|| reader.position().line(), csv::Position::line);
                match read {
                    Ok(false) => Ok(None),
                    // Records before this one were complete before the end was seen.
                    Ok(true) if reader.get_ref().are_open() => {
                        Ok(Some(Err(Reject { line, why: OPEN_QUOTE.to_owned() })))
                    }
                    Ok(true) => {
                        let parsed = csv_fields(record, *key, *value);
                        let made = parsed.map(|(key, value)| Record { line, key, value });
                        Ok(Some(made.map_err(|why| Reject { line, why })))
                    }
                    Err(error) if error.is_io_error() => Err(io::Error::other(error)),
                    Err(error) => Ok(Some(Err(Reject { line, why: error.to_string() }))),
                }
            }
        }
    }
}

/// Reads one line without its end. `None` at the end of the file, `Some(false)` for a line that was passed over.
fn read_line(input: &mut Input, buf: &mut Vec<u8>, line: &mut u64, crlf: bool) -> io::Result<Option<bool>> {
    buf.clear();
    let read = input.by_ref().take(LINE_MAX as u64 + 1).read_until(b'\n', buf)?;
    if read == 0 {
        return Ok(None);
    }
    *line += 1;
    if buf.pop_if(|byte| *byte == b'\n').is_some() {
        if crlf {
            buf.pop_if(|byte| *byte == b'\r');
        }
        return Ok(Some(true));
    }
    if read <= LINE_MAX {
        // The last line, without an end.
        return Ok(Some(true));
    }
    buf.clear();
    buf.shrink_to(1 << 16);
    input.skip_until(b'\n')?;
    Ok(Some(false))
}

type Pair = (Vec<u8>, Vec<u8>);

fn open((key, value): (&[u8], &[u8]), escaped: bool) -> Result<Pair, String> {
    match escaped {
        true => Ok((unescape(key)?, unescape(value)?)),
        false => Ok((key.to_vec(), value.to_vec())),
    }
}

fn missing(column: usize, has: usize) -> String {
    format!("column {} is missing: the line has {has}", column + 1)
}

fn tsv(line: &[u8], key: usize, value: Option<usize>) -> Result<(&[u8], &[u8]), String> {
    if line.is_empty() {
        return Err("the line is blank: an empty key is a line that begins with a tab".to_owned());
    }
    let columns = || line.split(|&byte| byte == b'\t');
    let column = |number: usize| columns().nth(number).ok_or_else(|| missing(number, columns().count()));
    let found = column(key)?;
    let value = match value {
        Some(value) => column(value)?,
        // The rest of the line, tabs and all; nothing if the key ends it.
        None => {
            let before: usize = columns().take(key + 1).map(|column| column.len() + 1).sum();
            line.get(before..).unwrap_or_default()
        }
    };
    Ok((found, value))
}

fn csv_fields(record: &csv::ByteRecord, key: usize, value: Option<usize>) -> Result<Pair, String> {
    let column = |number: usize| record.get(number).map(<[u8]>::to_vec).ok_or_else(|| missing(number, record.len()));
    let found = column(key)?;
    let value = match (value, record.len().saturating_sub(key + 1)) {
        (Some(value), _) => column(value)?,
        (None, 0) => Vec::new(),
        (None, 1) => column(key + 1)?,
        // Several fields are one value as CSV again.
        (None, _) => {
            let mut writer = csv::Writer::from_writer(Vec::new());
            let rest = record.iter().skip(key + 1);
            let written = writer.write_record(rest).map_err(|error| error.to_string());
            let mut bytes = written.and_then(|()| writer.into_inner().map_err(|error| error.to_string()))?;
            bytes.pop_if(|byte| *byte == b'\n');
            bytes
        }
    };
    Ok((found, value))
}

fn json(line: &[u8]) -> Result<Pair, String> {
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(line).map_err(|error| format!("no JSON object: {error}"))?;
    let field = |name: &str| match (object.get(name), object.get(&format!("{name}_hex"))) {
        (Some(serde_json::Value::String(text)), None) => Ok(Some(text.as_bytes().to_vec())),
        (None, Some(serde_json::Value::String(hex))) => crate::entry::unhex(name, hex.as_bytes()).map(Some),
        (None, None) => Ok(None),
        _ => Err(Failure::usage(format!("{name} must be one string, {name} or {name}_hex"))),
    };
    let both = || Ok::<_, Failure>((field("key")?, field("value")?));
    let (key, value) = both().map_err(|failure| failure.message)?;
    Ok((key.ok_or("there is no key")?, value.unwrap_or_default()))
}

use crate::exit::Failure;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8], change: impl FnOnce(&mut Rules)) -> Vec<Result<(String, String), String>> {
        let mut rules = Rules {
            format: Format::Tsv,
            key: Column::Number(0),
            value: None,
            header: false,
            escaped: false,
            crlf: false,
        };
        change(&mut rules);
        let mut records = Records::new(Box::new(io::Cursor::new(text.to_vec())), &rules).unwrap().unwrap();
        let mut out = Vec::new();
        let lossy = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        while let Some(record) = records.next().unwrap() {
            let line = |reject: Reject| format!("{}: {}", reject.line, reject.why);
            out.push(record.map(|record| (lossy(record.key), lossy(record.value))).map_err(line));
        }
        out
    }
    fn pair(key: &str, value: &str) -> Result<(String, String), String> {
        Ok((key.to_owned(), value.to_owned()))
    }

    #[test]
    fn columns_of_tab_separated_lines() {
        let text = b"a\tb\tc\n\nd\ne\t\nf\\t\tg\r\nlast";
        let all = read(text, |_| ());
        let want = [("a", "b\tc"), ("d", ""), ("e", ""), ("f\\t", "g\r"), ("last", "")];
        let mut want = want.map(|(key, value)| pair(key, value)).to_vec();
        want.insert(1, Err("2: the line is blank: an empty key is a line that begins with a tab".into()));
        assert_eq!(all, want);
        assert_eq!(read(b"\t\n", |_| ()), [pair("", "")]);
        assert_eq!(read(b"\n", |rules| rules.format = Format::Lines), [pair("", "")]);
        let second = read(b"a\tb\tc\nd\n", |rules| rules.key = Column::Number(1));
        assert_eq!(second, [pair("b", "c"), Err("2: column 2 is missing: the line has 1".into())]);
        let both = read(b"a\tb\tc\n", |rules| {
            rules.key = Column::Number(2);
            rules.value = Some(Column::Number(0));
        });
        assert_eq!(both, [pair("c", "a")]);
        let escaped = read(b"a\\tb\tc\\n\n\\q\n", |rules| rules.escaped = true);
        assert_eq!(escaped[0], pair("a\tb", "c\n"));
        assert!(escaped[1].as_ref().unwrap_err().starts_with("2: \"\\\\q\" is no escape"));
        assert_eq!(read(b"a\tb\r\n", |rules| rules.crlf = true), [pair("a", "b")]);
    }

    #[test]
    fn names_need_a_header() {
        let rules = Rules {
            format: Format::Csv,
            key: Column::Name("id".into()),
            value: Some(Column::Name("name".into())),
            header: true,
            escaped: false,
            crlf: false,
        };
        let named = read(b"name,id\n\"a,b\",1\n", |to| *to = rules.clone());
        assert_eq!(named, [pair("1", "a,b")]);
        let refuse = |text: &[u8], rules: &Rules| {
            Records::new(Box::new(io::Cursor::new(text.to_vec())), rules).unwrap().err().unwrap()
        };
        assert!(refuse(b"name,number\n", &rules).contains("the header has name, number"));
        assert!(refuse(b"name,id\n", &Rules { header: false, ..rules }).contains("add --header"));
    }

    /// Wherever the reader's buffer ends, and whatever stands before.
    #[test]
    fn csv_quotes_that_are_never_closed() {
        let csv = |text: &[u8]| read(text, |rules| rules.format = Format::Csv);
        let open = |line: u64| Err(format!("{line}: {OPEN_QUOTE}"));
        assert_eq!(csv(b"a,1\n\"b,2\nc,3\n"), [pair("a", "1"), open(2)]);
        assert_eq!(csv(b"a,\"1\"\"\n"), [open(1)]);
        assert_eq!(csv(b"\""), [open(1)]);
        for closed in [&b"a,\"1\""[..], b"a,\"1\"\"\"", b"a,1\"", b"\"a\"x\",1", b"\"\"\r\n\"\"", b"\"a\r\nb\",1\r\n"] {
            assert!(csv(closed).iter().all(Result::is_ok), "{:?}", csv(closed));
        }
        for lines in [100, 1000, 1639, 1640, 5000] {
            let text = [b"k,\"v\"\n".repeat(lines), b"last,\"open\n".to_vec()].concat();
            let all = csv(&text);
            assert_eq!((all.len(), &all[lines]), (lines + 1, &open(lines as u64 + 1)));
            assert!(all[..lines].iter().all(Result::is_ok));
        }
        let refused = |text: &[u8]| {
            let rules = Rules {
                format: Format::Csv,
                key: Column::Number(0),
                value: None,
                header: true,
                escaped: false,
                crlf: false,
            };
            Records::new(Box::new(io::Cursor::new(text.to_vec())), &rules).unwrap().err()
        };
        assert_eq!(refused(b"\"id,name\n1,2\n"), Some(format!("line 1: {OPEN_QUOTE}")));
        assert_eq!(refused(b"\"id\",name\n1,2\n"), None);
    }

    #[test]
    fn csv_and_json() {
        let csv = read(b"a,\"b\n\"\"c\"\"\"\nd,e,\"f,g\"\nh\n", |rules| rules.format = Format::Csv);
        assert_eq!(csv, [pair("a", "b\n\"c\""), pair("d", "e,\"f,g\""), pair("h", "")]);
        let json =
            read(b"{\"key\":\"a\",\"value_hex\":\"4242\"}\n{}\n{\"key\":1}\nx\n", |rules| rules.format = Format::Jsonl);
        assert_eq!(json[0], pair("a", "BB"));
        let why = ["there is no key", "must be one string", "no JSON object"];
        for (reject, why) in json[1..].iter().zip(why) {
            assert!(reject.as_ref().unwrap_err().contains(why), "{reject:?}");
        }
    }
}
