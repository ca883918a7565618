//! Histories as files: JSON lines, described field by field in `docs/history-format.md`.
//!
//! Invariants:
//!
//! 1. what [`write()`] writes, [`read()`] reads back as the same history, for any bytes in keys and values;
//! 2. no input makes [`read()`] panic, and every error names its line;
//! 3. a file of another version, or with a field that this version does not know, is refused rather than misread.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::history::{self, Call, History, HistoryError, Operation, Outcome, Response};

/// The header's `format`.
pub const FORMAT: &str = "farindex-history";
/// The header's `version` in what is written.
pub const VERSION: u32 = 3;
/// Versions that are read. Version 1 has no operations that expect a value.
pub const READS: std::ops::RangeInclusive<u32> = 1..=VERSION;

/// The error of a file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {error}")]
pub struct ReadError {
    /// The line, counted from 1.
    pub line: u64,
    /// The error in this line.
    #[source]
    pub error: LineError,
}

/// The error of one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// The line could not be read, or is not UTF-8.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is empty.
    #[error("the header line is missing")]
    NoHeader,
    /// The header names another format.
    #[error("the header's format is {0:?}, not \"{FORMAT}\"")]
    OtherFormat(String),
    /// The header names another version.
    #[error("version {0} is not supported; this is version {VERSION}")]
    OtherVersion(u32),
    /// An operation or a field that the file's version does not have.
    #[error("version {version} has no {what}")]
    NotInVersion {
        /// The operation or the field.
        what: &'static str,
        /// The header's version.
        version: u32,
    },
    /// The line is a JSON value other than an object.
    #[error("a line must be one JSON object")]
    NoObject,
    /// The line is not JSON, or has other fields or types than described.
    #[error("malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A field that the operation needs is missing.
    #[error("a {op} needs the field \"{field}\"")]
    Missing {
        /// The operation.
        op: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A field that the operation does not have.
    #[error("a {op} has no field \"{field}\"")]
    Surplus {
        /// The operation.
        op: &'static str,
        /// The field.
        field: &'static str,
    },
    /// The line has one of `responded` and `outcome` without the other.
    #[error("\"responded\" and \"outcome\" must both be present, or neither (pending)")]
    HalfResponse,
    /// A hexadecimal string is not made of pairs of hexadecimal digits.
    #[error("{0:?} is not an even number of hexadecimal digits")]
    BadHex(String),
    /// The operation is invalid.
    #[error("{0}")]
    Invalid(#[from] HistoryError),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    version: u32,
}

/// A byte string: printable text as it is, other bytes as hexadecimal digits.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Bytes {
    Text(String),
    Hex(Hex),
}

#[derive(Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
struct Hex {
    hex: String,
}

/// A map, because a derived reader would also accept an array of the fields in order.
impl TryFrom<BTreeMap<String, String>> for Hex {
    type Error = &'static str;
    fn try_from(mut fields: BTreeMap<String, String>) -> Result<Self, Self::Error> {
        match (fields.remove("hex"), fields.is_empty()) {
            (Some(hex), true) => Ok(Hex { hex }),
            _ => Err("it takes the field \"hex\" alone"),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum BoundField {
    Unbounded,
    Included(Bytes),
    Excluded(Bytes),
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Op {
    Get,
    Insert,
    Update,
    Upsert,
    Remove,
    Replace,
    #[serde(rename = "remove_if")]
    RemoveIf,
    Scan,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OutcomeField {
    Value(Option<Bytes>),
    Inserted,
    Exists,
    Updated,
    Absent,
    Differs,
    Replaced,
    Written,
    Removed,
    Pairs(Vec<(Bytes, Bytes)>),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    client: u64,
    op: Op,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expected: Option<Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    from: Option<BoundField>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<BoundField>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    invoked: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    responded: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outcome: Option<OutcomeField>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<u64>,
}

/// Writes a history. Wrap a file in a `BufWriter`.
pub fn write(history: &History, mut to: impl Write) -> io::Result<()> {
    let header = Header { format: FORMAT.to_owned(), version: VERSION };
    serde_json::to_writer(&mut to, &header)?;
    to.write_all(b"\n")?;
    for operation in history.operations() {
        serde_json::to_writer(&mut to, &encode(operation))?;
        to.write_all(b"\n")?;
    }
    to.flush()
}

/// Reads a history. Blank lines are skipped. Wrap a file in a `BufReader`.
pub fn read(from: impl BufRead) -> Result<History, ReadError> {
    let mut operations = Vec::new();
    let mut version = None;
    let mut line = 0;
    for text in from.lines() {
        line += 1;
        let at = |error| ReadError { line, error };
        let text = text.map_err(|error| at(error.into()))?;
        if text.trim().is_empty() {
            continue;
        }
        match version {
            Some(version) => operations.push(decode_line(&text, version, operations.len()).map_err(at)?),
            None => version = Some(check_header(&text).map_err(at)?),
        }
    }
    let at = |error| ReadError { line: line.max(1), error };
    if version.is_none() {
        return Err(at(LineError::NoHeader));
    }
    History::new(operations).map_err(|error| at(error.into()))
}

/// Parses one line's JSON object. A derived reader would also accept an array of the fields in order.
fn object<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, LineError> {
    match text.trim_start().starts_with('{') {
        true => Ok(serde_json::from_str(text)?),
        // Text that is not JSON is reported as malformed.
        false => {
            Err(serde_json::from_str::<serde::de::IgnoredAny>(text).map_or_else(Into::into, |_| LineError::NoObject))
        }
    }
}

fn check_header(text: &str) -> Result<u32, LineError> {
    let header: Header = object(text)?;
    if header.format != FORMAT {
        return Err(LineError::OtherFormat(header.format));
    }
    if !READS.contains(&header.version) {
        return Err(LineError::OtherVersion(header.version));
    }
    Ok(header.version)
}

fn encode(operation: &Operation) -> Line {
    let mut line = Line {
        client: operation.client,
        op: Op::Get,
        key: operation.call.key().map(encode_bytes),
        expected: operation.call.expected().map(encode_bytes),
        value: operation.call.value().map(encode_bytes),
        from: None,
        to: None,
        limit: None,
        invoked: operation.invoked,
        responded: operation.response.as_ref().map(|response| response.at),
        outcome: operation.response.as_ref().map(|response| encode_outcome(&response.outcome)),
        group: operation.group,
    };
    line.op = match &operation.call {
        Call::Get { .. } => Op::Get,
        Call::Insert { .. } => Op::Insert,
        Call::Update { .. } => Op::Update,
        Call::Upsert { .. } => Op::Upsert,
        Call::Remove { .. } => Op::Remove,
        Call::Replace { .. } => Op::Replace,
        Call::RemoveIf { .. } => Op::RemoveIf,
        Call::Scan { from, to, limit } => {
            line.from = Some(encode_bound(from));
            line.to = Some(encode_bound(to));
            line.limit = *limit;
            Op::Scan
        }
    };
    line
}

fn decode_line(text: &str, version: u32, index: usize) -> Result<Operation, LineError> {
    let line: Line = object(text)?;
    let response = match (line.responded, line.outcome) {
        (Some(at), Some(field)) => Some(Response { at, outcome: decode_outcome(field)? }),
        (None, None) => None,
        _ => return Err(LineError::HalfResponse),
    };
    let (client, invoked, group) = (line.client, line.invoked, line.group);
    let Line { op, key, expected, value, from, to, limit, .. } = line;
    let fields = Fields { key, expected, value, from, to, limit };
    let operation = Operation { client, call: call(op, fields)?, invoked, response, group };
    if version == 1 && operation.call.expected().is_some() {
        return Err(LineError::NotInVersion { what: operation.call.name(), version });
    }
    if version < 3 && group.is_some() {
        return Err(LineError::NotInVersion { what: "field \"group\"", version });
    }
    history::validate(index, &operation)?;
    Ok(operation)
}

/// The arguments in a line.
struct Fields {
    key: Option<Bytes>,
    expected: Option<Bytes>,
    value: Option<Bytes>,
    from: Option<BoundField>,
    to: Option<BoundField>,
    limit: Option<u64>,
}

fn call(op: Op, fields: Fields) -> Result<Call, LineError> {
    let (name, has_key, expects, has_value) = match op {
        Op::Get => ("get", true, false, false),
        Op::Insert => ("insert", true, false, true),
        Op::Update => ("update", true, false, true),
        Op::Upsert => ("upsert", true, false, true),
        Op::Remove => ("remove", true, false, false),
        Op::Replace => ("replace", true, true, true),
        Op::RemoveIf => ("remove_if", true, true, false),
        Op::Scan => ("scan", false, false, false),
    };
    let surplus = [
        ("key", fields.key.is_some() && !has_key),
        ("expected", fields.expected.is_some() && !expects),
        ("value", fields.value.is_some() && !has_value),
        ("from", fields.from.is_some() && has_key),
        ("to", fields.to.is_some() && has_key),
        ("limit", fields.limit.is_some() && has_key),
    ];
    if let Some((field, _)) = surplus.into_iter().find(|(_, surplus)| *surplus) {
        return Err(LineError::Surplus { op: name, field });
    }
    let need = |bytes: Option<Bytes>, field| match bytes {
        Some(bytes) => decode_bytes(bytes),
        None => Err(LineError::Missing { op: name, field }),
    };
    Ok(match op {
        Op::Get => Call::Get { key: need(fields.key, "key")? },
        Op::Remove => Call::Remove { key: need(fields.key, "key")? },
        Op::Insert => Call::Insert { key: need(fields.key, "key")?, value: need(fields.value, "value")? },
        Op::Update => Call::Update { key: need(fields.key, "key")?, value: need(fields.value, "value")? },
        Op::Upsert => Call::Upsert { key: need(fields.key, "key")?, value: need(fields.value, "value")? },
        Op::Replace => Call::Replace {
            key: need(fields.key, "key")?,
            expected: need(fields.expected, "expected")?,
            value: need(fields.value, "value")?,
        },
        Op::RemoveIf => Call::RemoveIf { key: need(fields.key, "key")?, expected: need(fields.expected, "expected")? },
        Op::Scan => Call::Scan { from: decode_bound(fields.from)?, to: decode_bound(fields.to)?, limit: fields.limit },
    })
}

fn encode_outcome(outcome: &Outcome) -> OutcomeField {
    match outcome {
        Outcome::Value(value) => OutcomeField::Value(value.as_deref().map(encode_bytes)),
        Outcome::Inserted => OutcomeField::Inserted,
        Outcome::Exists => OutcomeField::Exists,
        Outcome::Updated => OutcomeField::Updated,
        Outcome::Absent => OutcomeField::Absent,
        Outcome::Differs => OutcomeField::Differs,
        Outcome::Replaced => OutcomeField::Replaced,
        Outcome::Written => OutcomeField::Written,
        Outcome::Removed => OutcomeField::Removed,
        Outcome::Pairs(pairs) => {
            OutcomeField::Pairs(pairs.iter().map(|(key, value)| (encode_bytes(key), encode_bytes(value))).collect())
        }
    }
}

fn decode_outcome(field: OutcomeField) -> Result<Outcome, LineError> {
    Ok(match field {
        OutcomeField::Value(value) => Outcome::Value(value.map(decode_bytes).transpose()?),
        OutcomeField::Inserted => Outcome::Inserted,
        OutcomeField::Exists => Outcome::Exists,
        OutcomeField::Updated => Outcome::Updated,
        OutcomeField::Absent => Outcome::Absent,
        OutcomeField::Differs => Outcome::Differs,
        OutcomeField::Replaced => Outcome::Replaced,
        OutcomeField::Written => Outcome::Written,
        OutcomeField::Removed => Outcome::Removed,
        OutcomeField::Pairs(pairs) => {
            let pair = |(key, value)| Ok((decode_bytes(key)?, decode_bytes(value)?));
            Outcome::Pairs(pairs.into_iter().map(pair).collect::<Result<_, LineError>>()?)
        }
    })
}

fn encode_bound(bound: &Bound<Vec<u8>>) -> BoundField {
    match bound {
        Bound::Unbounded => BoundField::Unbounded,
        Bound::Included(key) => BoundField::Included(encode_bytes(key)),
        Bound::Excluded(key) => BoundField::Excluded(encode_bytes(key)),
    }
}

/// Decodes a bound. A missing bound is unbounded.
fn decode_bound(field: Option<BoundField>) -> Result<Bound<Vec<u8>>, LineError> {
    Ok(match field {
        None | Some(BoundField::Unbounded) => Bound::Unbounded,
        Some(BoundField::Included(key)) => Bound::Included(decode_bytes(key)?),
        Some(BoundField::Excluded(key)) => Bound::Excluded(decode_bytes(key)?),
    })
}

/// The text of printable bytes: valid UTF-8 without control characters.
pub(crate) fn printable(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.chars().any(char::is_control)).then_some(text)
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encode_bytes(bytes: &[u8]) -> Bytes {
    match printable(bytes) {
        Some(text) => Bytes::Text(text.to_owned()),
        None => Bytes::Hex(Hex { hex: hex(bytes) }),
    }
}

fn decode_bytes(bytes: Bytes) -> Result<Vec<u8>, LineError> {
    match bytes {
        Bytes::Text(text) => Ok(text.into_bytes()),
        Bytes::Hex(Hex { hex }) => unhex(&hex).ok_or(LineError::BadHex(hex)),
    }
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| match *pair {
            [high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
            _ => None,
        })
        .collect()
}
