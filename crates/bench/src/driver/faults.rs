//! Wrong answers and errors: how many of which kind, and the first of each in words.

use std::collections::BTreeMap;
use std::fmt;

/// Faults by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    kinds: BTreeMap<String, (u64, String)>,
}

impl Faults {
    /// One more of this kind; `message` is asked only for the first.
    pub fn add(&mut self, kind: &str, message: impl FnOnce() -> String) {
        match self.kinds.get_mut(kind) {
            Some((count, _)) => *count += 1,
            None => {
                self.kinds.insert(kind.to_owned(), (1, message()));
            }
        }
    }
    /// How many in all.
    pub fn total(&self) -> u64 {
        self.kinds.values().map(|(count, _)| count).sum()
    }
    /// Kind, count and first message of each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64, &str)> {
        self.kinds.iter().map(|(kind, (count, message))| (kind.as_str(), *count, message.as_str()))
    }
    /// Adds what another thread saw.
    pub(crate) fn merge(&mut self, other: Faults) {
        for (kind, (count, message)) in other.kinds {
            self.kinds.entry(kind).or_insert((0, message)).0 += count;
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (kind, count, message)) in self.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            write!(f, "{newline}{count} x {kind}, first: {message}")?;
        }
        Ok(())
    }
}

/// A short name for an error: the names of its variants, outermost first, as its `Debug` form begins.
pub(crate) fn error_kind(error: &dyn fmt::Debug) -> String {
    let text = format!("{error:?}");
    let mut kind = String::new();
    for part in text.split('(') {
        let name: String = part.chars().take_while(char::is_ascii_alphanumeric).collect();
        if name.is_empty() || !name.starts_with(|c: char| c.is_ascii_uppercase()) {
            break;
        }
        if !kind.is_empty() {
            kind.push('.');
        }
        kind.push_str(&name);
        if name.len() != part.len() {
            break;
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::{FabricError, NodeId};
    use farindex_index::IndexError;

    #[test]
    fn errors_are_named_by_their_variants() {
        let full = |error: IndexError| error_kind(&error);
        assert_eq!(full(FabricError::Revoked.into()), "Fabric.Revoked");
        assert_eq!(full(FabricError::NoSuchNode(NodeId::new(3)).into()), "Fabric.NoSuchNode");
        assert_eq!(full(IndexError::KeyTooLong { len: 9, max: 8 }), "KeyTooLong");
        assert_eq!(full(IndexError::BadConfig("Anything (at all)".into())), "BadConfig");
    }

    #[test]
    fn the_first_message_is_kept() {
        let mut faults = Faults::default();
        faults.add("full", || "first".into());
        faults.add("full", || unreachable!("asked again"));
        let mut others = Faults::default();
        others.add("full", || "later".into());
        others.add("gone", || "node 1".into());
        faults.merge(others);
        assert_eq!(faults.total(), 4);
        assert_eq!(faults.to_string(), "3 x full, first: first\n1 x gone, first: node 1");
    }
}
