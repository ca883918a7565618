//! A small client: writes commands, reads replies of both versions of the protocol.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A reply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Double(f64),
    Null,
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        match text.split_at_checked(1) {
            Some(("+", text)) => Value::Simple(text.to_owned()),
            Some(("-", text)) => Value::Error(text.to_owned()),
            _ => Value::Bulk(text.as_bytes().to_vec()),
        }
    }
}
impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value::Integer(value)
    }
}
impl From<()> for Value {
    fn from((): ()) -> Self {
        Value::Null
    }
}
impl<V: Into<Value>, const N: usize> From<[V; N]> for Value {
    fn from(values: [V; N]) -> Self {
        Value::Array(values.into_iter().map(Into::into).collect())
    }
}
impl From<Vec<Value>> for Value {
    fn from(values: Vec<Value>) -> Self {
        Value::Array(values)
    }
}

impl Value {
    /// The text of an error; empty if it is none.
    pub(crate) fn error(&self) -> &str {
        if let Value::Error(text) = self { text } else { "" }
    }
    pub(crate) fn integer(&self) -> i64 {
        if let Value::Integer(value) = self { *value } else { panic!("{self:?} is no integer") }
    }
    pub(crate) fn array(self) -> Vec<Value> {
        if let Value::Array(values) = self { values } else { panic!("{self:?} is no array") }
    }
    pub(crate) fn text(&self) -> String {
        match self {
            Value::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("{other:?} is no byte string"),
        }
    }
}

/// A connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    reader: BufReader<TcpStream>,
}

/// The bytes of a command.
pub(crate) fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n", arg.as_ref().len()).as_bytes());
        bytes.extend_from_slice(arg.as_ref());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("an option");
        let reader = BufReader::with_capacity(1 << 16, stream.try_clone().expect("a second handle"));
        Client { stream, reader }
    }
    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the gateway reads");
    }
    /// One command, and its reply.
    pub(crate) fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Value {
        self.send(&encode(args));
        self.reply().expect("a reply")
    }
    /// The same, with the arguments as words.
    pub(crate) fn words(&mut self, command: &str) -> Value {
        self.call(&command.split(' ').collect::<Vec<_>>())
    }
    /// The next reply; `None` if the gateway has closed the connection.
    pub(crate) fn reply(&mut self) -> Option<Value> {
        let mut line = Vec::new();
        match self.reader.read_until(b'\n', &mut line) {
            Ok(0) => return None,
            // What does not come is no end.
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("neither a reply nor the end for 30 s"),
            Err(_) => return None,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(line.strip_suffix(b"\r\n")?).into_owned();
        let (kind, rest) = text.split_at(1);
        let number = || rest.parse::<i64>().expect("a number");
        Some(match kind {
            "+" => Value::Simple(rest.to_owned()),
            "-" => Value::Error(rest.to_owned()),
            ":" => Value::Integer(number()),
            "_" => Value::Null,
            "," => Value::Double(rest.parse().expect("a number")),
            "$" | "=" if number() < 0 => Value::Null,
            "$" | "=" => {
                let mut bytes = vec![0; number() as usize + 2];
                self.reader.read_exact(&mut bytes).ok()?;
                assert!(bytes.ends_with(b"\r\n"));
                bytes.truncate(bytes.len() - 2);
                Value::Bulk(bytes)
            }
            "*" | "~" => Value::Array((0..number()).map(|_| self.reply()).collect::<Option<_>>()?),
            "%" => Value::Map((0..number()).map(|_| Some((self.reply()?, self.reply()?))).collect::<Option<_>>()?),
            _ => panic!("{text:?} is no reply"),
        })
    }
}
