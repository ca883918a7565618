//! The verbs of an operation, without their meaning.
//!
//! Written as `read 512; read 64 @block`: batches in the order in which they wait for each other, separated by `;`, the
//! verbs of a batch by `+`. A verb is `read BYTES`, `write BYTES`, `cas` or `faa`, in the index's memory or, with
//! `@block`, in that of the key-value blocks.

use crate::workload::Op;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Which part of far memory a verb goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// Buckets, nodes.
    Index,
    /// Key-value blocks.
    Block,
}

/// A verb without its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShapeVerb {
    /// READ of so many bytes.
    Read(usize),
    /// WRITE of so many bytes.
    Write(usize),
    /// Compare-and-swap.
    Cas,
    /// Fetch-and-add.
    Faa,
}

impl ShapeVerb {
    /// Bytes of far memory that it touches.
    pub const fn len(self) -> usize {
        match self {
            ShapeVerb::Read(len) | ShapeVerb::Write(len) => len,
            ShapeVerb::Cas | ShapeVerb::Faa => 8,
        }
    }
    /// Does it touch none? (Such a shape is not accepted.)
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// One verb and the part of memory it goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerbShape {
    /// What it does.
    pub verb: ShapeVerb,
    /// Where.
    pub area: Area,
}

/// The verbs of one operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shape {
    /// Batches; each waits for the one before.
    pub steps: Vec<Vec<VerbShape>>,
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let verb = |text: &str| {
            let mut words = text.split_whitespace().peekable();
            let name = words.next().unwrap_or_default();
            let mut bytes = || {
                let word = words.next().unwrap_or_default();
                let len = word.parse::<usize>().unwrap_or(0);
                match len > 0 && len.is_multiple_of(8) {
                    true => Ok(len),
                    false => Err(format!("{text:?}: {name} takes a number of bytes, a multiple of 8")),
                }
            };
            let verb = match name {
                "read" => ShapeVerb::Read(bytes()?),
                "write" => ShapeVerb::Write(bytes()?),
                "cas" => ShapeVerb::Cas,
                "faa" => ShapeVerb::Faa,
                _ => return Err(format!("{text:?} is no verb; there are read BYTES, write BYTES, cas, faa")),
            };
            let area = match words.next() {
                None => Area::Index,
                Some("@block") => Area::Block,
                Some(other) => return Err(format!("{other:?} after a verb; only @block may stand there")),
            };
            match words.next() {
                None => Ok(VerbShape { verb, area }),
                Some(other) => Err(format!("{other:?} after a verb; verbs are separated by + and ;")),
            }
        };
        let batch = |text: &str| text.split('+').map(|text| verb(text.trim())).collect();
        Ok(Shape { steps: text.split(';').map(batch).collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.steps.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "; " })?;
            for (j, VerbShape { verb, area }) in step.iter().enumerate() {
                f.write_str(if j == 0 { "" } else { " + " })?;
                match verb {
                    ShapeVerb::Read(len) => write!(f, "read {len}")?,
                    ShapeVerb::Write(len) => write!(f, "write {len}")?,
                    ShapeVerb::Cas => f.write_str("cas")?,
                    ShapeVerb::Faa => f.write_str("faa")?,
                }
                if *area == Area::Block {
                    f.write_str(" @block")?;
                }
            }
        }
        Ok(())
    }
}

/// The shape of each operation of an index: get, insert, update, upsert, remove. A read-modify-write is a get and then
/// an update. Nobody can tell a get of an absent key by its key: where a workload is of those, `get` has their shape.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shapes(BTreeMap<Op, Shape>);

impl Shapes {
    /// From `(operation, shape)` pairs, shapes as text.
    pub fn parse(shapes: &[(Op, &str)]) -> Result<Self, String> {
        let parse = |&(op, text): &(Op, &str)| Ok((op, text.parse().map_err(|e| format!("{}: {e}", op.name()))?));
        shapes.iter().map(parse).collect::<Result<_, String>>().map(Shapes)
    }
    /// Sets the shape of one operation.
    pub fn set(&mut self, op: Op, shape: Shape) {
        self.0.insert(op, shape);
    }
    /// The shape of an operation.
    pub fn get(&self, op: Op) -> Option<&Shape> {
        self.0.get(&op)
    }
    pub(crate) fn longest(&self, area: Area) -> usize {
        let verbs = self.0.values().flat_map(|shape| shape.steps.iter().flatten());
        verbs.filter(|verb| verb.area == area).map(|verb| verb.verb.len()).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_and_written_alike() {
        for text in ["read 512; read 64 @block", "write 64 @block + read 512; cas", "faa"] {
            assert_eq!(text.parse::<Shape>().unwrap().to_string(), text);
        }
        let insert: Shape = "write 64 @block + read 512; cas".parse().unwrap();
        assert_eq!((insert.steps.len(), insert.steps[0].len()), (2, 2));
    }

    #[test]
    fn bad_shapes_say_what_is_wrong() {
        for (text, want) in [
            ("", "is no verb"),
            ("read", "takes a number of bytes"),
            ("read 12", "multiple of 8"),
            ("read 0", "multiple of 8"),
            ("cas;", "is no verb"),
            ("cas @bucket", "only @block"),
            ("cas @block 8", "separated by"),
        ] {
            let error = text.parse::<Shape>().unwrap_err();
            assert!(error.contains(want), "{text}: {error}");
        }
    }
}
