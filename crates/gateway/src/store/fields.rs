//! The fields of a hash, in one record.
//!
//! ```text
//! u32 LE        number of fields
//! then for each, in the order in which they were added:
//! u32 LE, u32 LE, bytes, bytes        lengths of name and value, name, value
//! ```

use crate::Fail;
use std::collections::HashMap;

/// The fields of a hash, borrowed from its record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Fields<'a> {
    all: Vec<(&'a [u8], &'a [u8])>,
}

fn damaged() -> Fail {
    Fail::text("the fields of this hash are damaged; run `farindex pool check`, or DEL the key")
}

fn take_u32(bytes: &mut &[u8]) -> Option<usize> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    usize::try_from(u32::from_le_bytes(*head)).ok()
}

/// How many fields a payload has.
pub(crate) fn count(mut payload: &[u8]) -> Result<usize, Fail> {
    take_u32(&mut payload).ok_or_else(damaged)
}

/// The fields of a payload, one after the other.
pub(crate) fn iter(mut payload: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), Fail>> {
    let count = take_u32(&mut payload);
    let mut left = count.unwrap_or(1);
    std::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let next = (|| {
            count?;
            let (name, value) = (take_u32(&mut payload)?, take_u32(&mut payload)?);
            let (name, rest) = payload.split_at_checked(name)?;
            let (value, rest) = rest.split_at_checked(value)?;
            payload = rest;
            Some((name, value))
        })();
        if next.is_none() {
            left = 0;
        }
        Some(next.ok_or_else(damaged))
    })
}

/// The value of one field.
pub(crate) fn find<'a>(payload: &'a [u8], name: &[u8]) -> Result<Option<&'a [u8]>, Fail> {
    for field in iter(payload) {
        let (found, value) = field?;
        if found == name {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

impl<'a> Fields<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Fail> {
        Ok(Fields { all: iter(payload).collect::<Result<_, _>>()? })
    }
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
    /// Sets fields; returns how many are new.
    pub(crate) fn set(&mut self, pairs: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>) -> usize {
        let before = self.all.len();
        // Few pairs are looked for one by one; many would cost the product.
        if pairs.len() <= 8 {
            for (name, value) in pairs {
                match self.all.iter_mut().find(|(found, _)| *found == name) {
                    Some(field) => field.1 = value,
                    None => self.all.push((name, value)),
                }
            }
        } else {
            let mut places: HashMap<_, _> = self.all.iter().enumerate().map(|(at, (name, _))| (*name, at)).collect();
            for (name, value) in pairs {
                let next = self.all.len();
                match self.all.get_mut(*places.entry(name).or_insert(next)) {
                    Some(field) => field.1 = value,
                    None => self.all.push((name, value)),
                }
            }
        }
        self.all.len() - before
    }
    /// Removes fields; returns how many were there.
    pub(crate) fn remove(&mut self, names: &[&[u8]]) -> usize {
        let before = self.all.len();
        if names.len() <= 8 {
            self.all.retain(|(found, _)| !names.contains(found));
        } else {
            let names: std::collections::HashSet<_> = names.iter().copied().collect();
            self.all.retain(|(found, _)| !names.contains(found));
        }
        before - self.all.len()
    }
    /// Appends the payload to a record.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
        bytes.extend_from_slice(&u32::try_from(self.all.len()).unwrap_or(u32::MAX).to_le_bytes());
        for (name, value) in &self.all {
            bytes.extend_from_slice(&len(name));
            bytes.extend_from_slice(&len(value));
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(fields: &Fields<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        fields.encode(&mut bytes);
        bytes
    }

    #[test]
    fn fields_keep_their_order_and_their_last_value() {
        let mut fields = Fields::default();
        assert_eq!(fields.set([(&b"a"[..], &b"1"[..]), (b"b", b"2"), (b"a", b"3")].into_iter()), 2);
        let names: Vec<Vec<u8>> = (0..20u8).map(|i| vec![i]).collect();
        assert_eq!(fields.set(names.iter().map(|name| (&name[..], &b"x"[..]))), 20);
        let twice = [names.clone(), names.clone()].concat();
        assert_eq!(fields.set(twice.iter().map(|name| (&name[..], &b"y"[..]))), 0);
        let bytes = payload(&fields);
        assert_eq!(Fields::parse(&bytes), Ok(fields.clone()));
        assert_eq!(find(&bytes, b"a"), Ok(Some(&b"3"[..])));
        assert_eq!(find(&bytes, &[7]), Ok(Some(&b"y"[..])));
        assert_eq!(find(&bytes, b"absent"), Ok(None));
        assert_eq!(count(&bytes), Ok(22));
        let all: Vec<&[u8]> = names.iter().map(|name| &name[..]).chain([&b"b"[..], b"b", b"absent"]).collect();
        assert_eq!(fields.remove(&all), 21);
        assert_eq!(fields.remove(&[b"b", b"a", b"a"]), 1);
        assert_eq!(fields.len(), 0);
    }

    #[test]
    fn damaged_fields_are_an_error() {
        let mut fields = Fields::default();
        fields.set([(&b"name"[..], &b"value"[..])].into_iter());
        let bytes = payload(&fields);
        for len in 0..bytes.len() {
            assert_eq!(Fields::parse(&bytes[..len]), Err(damaged()), "{len} bytes");
        }
        assert_eq!(Fields::parse(&[0xff; 64]), Err(damaged()));
    }
}
